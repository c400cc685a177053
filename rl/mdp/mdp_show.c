/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds as text, and the parts that the other drawings use too. */
#include "rl/mdp/mdp_show.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/mdp/mdp_show_parts.h"

bool mdp_is_grid(const NamedMdp *world) {
    return world->rows > 0 && world->columns > 0 && (int64_t)world->rows * world->columns == world->mdp.n_states;
}

/* ---- actions ---- */

static const struct {
    const char *name;
    ShowDirection way;
} ways[] = {
    {"up", {-1, 0, "↑", "^"}},       {"north", {-1, 0, "↑", "^"}},      {"down", {1, 0, "↓", "v"}},       {"south", {1, 0, "↓", "v"}},
    {"left", {0, -1, "←", "<"}},     {"west", {0, -1, "←", "<"}},       {"right", {0, 1, "→", ">"}},      {"east", {0, 1, "→", ">"}},
    {"up right", {-1, 1, "↗", "/"}}, {"down right", {1, 1, "↘", "\\"}}, {"down left", {1, -1, "↙", "/"}}, {"up left", {-1, -1, "↖", "\\"}},
};

const ShowDirection *show_direction(const NamedMdp *world, int64_t action) {
    for (size_t i = 0; world->action_names && i < COUNT_OF(ways); i++)
        if (strcmp(ways[i].name, world->action_names[action]) == 0) return &ways[i].way;
    return NULL;
}

bool show_is_playable(const NamedMdp *world, int64_t state) {
    return !world->mdp.terminal[state] && !(world->cells && strchr("GHC#", world->cells[state]));
}

/* Actions chosen about as often as the most likely one. */
bool show_is_chosen(const MdpPicture *picture, int64_t state, int64_t action) {
    int64_t n = picture->world->mdp.n_actions;
    const double *row = picture->policy + state * n;
    double most = 0;
    for (int64_t a = 0; a < n; a++) most = fmax(most, row[a]);
    return most > 0 && row[action] > 0.99 * most && show_is_playable(picture->world, state);
}

char show_letter(const NamedMdp *world, int64_t state) {
    if (world->cells && world->cells[state] != '.' && world->cells[state] != 'F') return world->cells[state];
    return world->mdp.terminal[state] && !world->cells ? '#' : ' ';
}

ShowRange show_range(const MdpPicture *picture) {
    ShowRange range = {(double)INFINITY, -(double)INFINITY};
    for (int64_t s = 0; s < picture->world->mdp.n_states; s++) {
        if (!show_is_playable(picture->world, s) || !isfinite(picture->V[s])) continue;
        range.low = fmin(range.low, picture->V[s]);
        range.high = fmax(range.high, picture->V[s]);
    }
    return range;
}

double show_share(ShowRange range, double value) {
    return range.high > range.low ? fmin(fmax((value - range.low) / (range.high - range.low), 0), 1) : 0.5;
}

void show_value(double value, char out[16]) {
    double size = fabs(value);
    bool plain = size == 0 || (size >= 5e-4 && size < 1e6);
    snprintf(out, 16, !plain ? "%.3g" : size >= 1000 ? "%.0f" : size >= 100 ? "%.1f" : size >= 10 ? "%.2f" : "%.3f", value);
    if (strcmp(out, "-0.000") == 0) memmove(out, out + 1, strlen(out));
}

/* "left 0.500, up 0.500", or just "left". */
void show_append_policy(Str *text, const MdpPicture *picture, int64_t state) {
    const NamedMdp *world = picture->world;
    const double *row = picture->policy + state * world->mdp.n_actions;
    size_t n = 0, shown = 0;
    for (int64_t a = 0; a < world->mdp.n_actions; a++) n += row[a] > 0;
    for (int64_t a = 0; a < world->mdp.n_actions && !world->mdp.terminal[state]; a++) {
        if (!(row[a] > 0)) continue;
        if (shown++) str_append(text, ", ");
        if (world->action_names)
            str_append(text, world->action_names[a]);
        else
            str_printf(text, "%lld", (long long)a);
        if (n > 1) str_printf(text, " %.3g", row[a]);
    }
}

/* ---- the grid ---- */

typedef struct Screen {
    const MdpPicture *picture;
    bool utf8, colour;
    ShowRange range;
    int cell;
} Screen;

/* Dark red to dark green by value, on terminals with 256 colours. */
static void paint(const Screen *screen, int64_t state, Str *text) {
    static const int shades[] = {52, 88, 94, 58, 64, 28, 22};
    if (!screen->colour || !show_is_playable(screen->picture->world, state)) return;
    int shade = shades[(int)(show_share(screen->range, screen->picture->V[state]) * (COUNT_OF(shades) - 1) + 0.5)];
    str_printf(text, "\033[48;5;%d;38;5;231m", shade);
}

static void append_padded(Str *text, const char *what, int shown, int width) {
    for (int i = 0; i < (width - shown + 1) / 2; i++) str_append_char(text, ' ');
    str_append(text, what);
    for (int i = 0; i < (width - shown) / 2; i++) str_append_char(text, ' ');
}

/* The cell's letter and its arrows, or the name of an action that is not a direction. */
static void append_arrows(const Screen *screen, int64_t state, Str *text) {
    const NamedMdp *world = screen->picture->world;
    Str arrows = {0};
    int shown = 0;
    char letter = show_letter(world, state);
    if (letter != ' ') {
        str_append_char(&arrows, letter);
        shown++;
    }
    for (int64_t a = 0; a < world->mdp.n_actions; a++) {
        if (!show_is_chosen(screen->picture, state, a)) continue;
        const ShowDirection *way = show_direction(world, a);
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)a);
        const char *name = way ? (screen->utf8 ? way->arrow : way->plain) : world->action_names ? world->action_names[a] : number;
        int length = way ? 1 : (int)strlen(name);
        if (shown + length > screen->cell) break;
        str_append(&arrows, name);
        shown += length;
    }
    append_padded(text, str_text(&arrows), shown, screen->cell);
    str_release(&arrows);
}

static void append_value(const Screen *screen, int64_t state, Str *text) {
    char value[16] = "";
    if (show_is_playable(screen->picture->world, state)) show_value(screen->picture->V[state], value);
    append_padded(text, value, (int)strlen(value), screen->cell);
}

static void append_border(const Screen *screen, Str *text) {
    for (int c = 0; c < screen->picture->world->columns; c++) {
        str_append_char(text, '+');
        for (int i = 0; i < screen->cell; i++) str_append_char(text, '-');
    }
    str_append(text, "+\n");
}

static void append_line(const Screen *screen, int row, void (*part)(const Screen *, int64_t, Str *), Str *text) {
    int columns = screen->picture->world->columns;
    for (int c = 0; c < columns; c++) {
        int64_t state = (int64_t)row * columns + c;
        str_append_char(text, '|');
        paint(screen, state, text);
        part(screen, state, text);
        if (screen->colour) str_append(text, "\033[0m");
    }
    str_append(text, "|\n");
}

static int widest_value(const MdpPicture *picture) {
    int widest = 5;
    for (int64_t s = 0; s < picture->world->mdp.n_states; s++) {
        char value[16];
        show_value(picture->V[s], value);
        widest = MAX(widest, (int)strlen(value));
    }
    return widest + 1;
}

static void append_grid(Screen *screen, int width, Str *text) {
    const NamedMdp *world = screen->picture->world;
    int with_values = widest_value(screen->picture);
    bool values = (int64_t)world->columns * (with_values + 1) + 1 <= width;
    screen->cell = values ? with_values : 3;
    for (int row = 0; row < world->rows; row++) {
        if (values || row == 0) append_border(screen, text);
        append_line(screen, row, append_arrows, text);
        if (values) append_line(screen, row, append_value, text);
    }
    append_border(screen, text);
}

/* ---- the table ---- */

static void append_table(const MdpPicture *picture, Str *text) {
    const NamedMdp *world = picture->world;
    for (int64_t s = 0; s < world->mdp.n_states; s++) {
        Str name = {0};
        char value[16];
        mdp_append_state(&name, world, s);
        show_value(picture->V[s], value);
        str_printf(text, "%-28s %10s  ", str_text(&name), value);
        if (world->mdp.terminal[s])
            str_append(text, "end");
        else
            show_append_policy(text, picture, s);
        str_append_char(text, '\n');
        str_release(&name);
    }
}

void mdp_show_text(const MdpPicture *picture, bool utf8, bool colour, int width, Str *text) {
    Screen screen = {picture, utf8, colour, show_range(picture), 0};
    if (mdp_is_grid(picture->world))
        append_grid(&screen, width, text);
    else
        append_table(picture, text);
}
