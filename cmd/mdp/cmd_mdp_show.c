/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp show: draws a world with values and a policy. */
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/common/results.h"
#include "cmd/mdp/cmd_mdp.h"
#include "rl/mdp/mdp_show.h"

typedef struct Show {
    const char *policy, *svg, *html, *output;
    MdpQuestion question;
} Show;

/* Prints our colour sequences (ESC [ numbers m) raw. All else may come from a file, and goes through print_text. */
static void print_painted(const char *text, size_t len) {
    size_t plain = 0;
    for (size_t at = 0, n; at + 1 < len; at += MAX(n, 1)) {
        n = text[at] == '\033' && text[at + 1] == '[' ? 2 + strspn(text + at + 2, "0123456789;") : 0;
        n = n > 0 && text[at + n] == 'm' ? n + 1 : 0;
        if (n == 0) continue;
        print_text(text + plain, at - plain);
        print_raw(text + at, n);
        plain = at + n;
    }
    print_text(text + plain, len - plain);
}

static void print_screen(const MdpPicture *picture) {
    Str text = {0};
    int columns = screen_width();
    mdp_show_text(picture, terminal_is_utf8(), screen_has_colour(), columns ? columns : 1 << 20, &text); /* no limit of the width on a pipe */
    (screen_has_colour() ? print_painted : print_text)(str_text(&text), text.len);
    str_release(&text);
}

static void write_names(JsonWriter *w, const char *key, const char *const *names, int64_t n) {
    jw_array(w, key);
    for (int64_t i = 0; i < n; i++) {
        if (names)
            jw_string(w, NULL, names[i]);
        else
            jw_int(w, NULL, i);
    }
    jw_end_array(w);
}

static void write_json(const MdpPicture *picture, JsonWriter *out) {
    const NamedMdp *world = picture->world;
    int64_t n = world->mdp.n_states, a = world->mdp.n_actions;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", world->rows);
    jw_int(&w, "columns", world->columns);
    if (world->cells) jw_string_n(&w, "cells", world->cells, (size_t)n);
    write_names(&w, "states", world->state_names, n);
    write_names(&w, "actions", world->action_names, a);
    jw_double(&w, "gamma", world->mdp.gamma);
    write_numbers(&w, "V", picture->V, n);
    jw_array(&w, "policy");
    for (int64_t s = 0; s < n; s++) {
        if (world->mdp.terminal[s]) {
            jw_null(&w, NULL);
            continue;
        }
        write_numbers(&w, NULL, picture->policy + s * a, a);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    *out = w;
}

static void print_json(const MdpPicture *picture) {
    JsonWriter w;
    write_json(picture, &w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* Writes what the ending of the -o name says: a page, a drawing, JSON, or the text of the terminal without colours. */
static Status write_output(const char *path, const MdpPicture *picture) {
    enum { WIDE = 1 << 20 };
    Str text = {0};
    Status status = ST_OK;
    if (text_ends_with(path, ".html") || text_ends_with(path, ".htm"))
        mdp_show_html(picture, &text);
    else if (text_ends_with(path, ".svg"))
        status = mdp_show_svg(picture, &text);
    else if (text_ends_with(path, ".json")) {
        JsonWriter w;
        write_json(picture, &w);
        str_printf(&text, "%s\n", str_text(&w.text));
        jw_release(&w);
    } else
        mdp_show_text(picture, terminal_is_utf8(), false, WIDE, &text);
    if (status == ST_OK) status = file_write_all(path, text.data, text.len);
    str_release(&text);
    return status;
}

/* No output may overwrite the world or the policy, and a page may overwrite only a page. */
static Status check_outputs(const Command *command, const Show *show) {
    const char *spec = command->arguments[0], *file = arena_strndup(command->arena, spec, strcspn(spec, ":"));
    const char *const inputs[] = {spec, file, show->policy};
    const char *const outputs[] = {show->svg, show->html, show->output};
    for (size_t i = 0; i < COUNT_OF(outputs); i++) TRY(check_output(outputs[i], inputs, COUNT_OF(inputs)));
    TRY(check_page(show->svg));
    return check_page(show->html);
}

static Status write_files(const Show *show, const MdpPicture *picture) {
    Str svg = {0}, html = {0};
    Status status = ST_OK;
    if (show->svg && (status = mdp_show_svg(picture, &svg)) == ST_OK) status = file_write_all(show->svg, svg.data, svg.len);
    if (show->html && status == ST_OK) {
        mdp_show_html(picture, &html);
        status = file_write_all(show->html, html.data, html.len);
    }
    if (show->output && status == ST_OK) status = write_output(show->output, picture);
    str_release(&svg);
    str_release(&html);
    return status;
}

/* Finds the values of the given policy, or the optimal values and policy. */
static Status find_values(Arena *arena, const Show *show, const NamedMdp *world, const double **V, double **policy) {
    MdpOptions options = show->question.options;
    MdpSolution solution;
    int64_t n = world->mdp.n_states, actions = world->mdp.n_actions;
    options.world = world;
    if (show->policy) {
        TRY(mdp_policy_read(show->policy, world, arena, policy));
        TRY(mdp_evaluate(&world->mdp, *policy, &options, arena, &solution));
    } else {
        TRY(mdp_solve(&world->mdp, &options, arena, &solution));
        *policy = arena_zero(arena, (size_t)(n * actions) * sizeof **policy);
        if (!*policy) return ST_RESOURCE;
        const int32_t *best = solution.attaining ? solution.attaining : solution.policy;
        for (int64_t s = 0; s < n; s++)
            if (best[s] >= 0) (*policy)[s * actions + best[s]] = 1;
    }
    *V = solution.V;
    return ST_OK;
}

static Status cmd_mdp_show_draw(const Command *command, const Show *show, const NamedMdp *world) {
    MdpPicture picture = {.world = world, .title = command->arguments[0]};
    double *policy = NULL;
    TRY(find_values(command->arena, show, world, &picture.V, &policy));
    picture.policy = policy;
    TRY(write_files(show, &picture));
    if (command->json)
        print_json(&picture);
    else if (!show->svg && !show->html && !show->output)
        print_screen(&picture);
    if (show->svg) show_line("wrote %s", show->svg);
    if (show->html) show_line("wrote %s", show->html);
    if (show->output) show_line("wrote %s", show->output);
    return ST_OK;
}

static Status show_world(const Command *command, void *context) {
    Show *show = context;
    NamedMdp *world = NULL;
    TRY(command_needs(command, 1, 1));
    TRY(check_outputs(command, show));
    TRY(mdp_question_open(command->arguments[0], &show->question, &world));
    Status status = cmd_mdp_show_draw(command, show, world);
    named_mdp_free(world);
    return status;
}

Status cmd_mdp_show(int argc, char **argv) {
    Show show = {.question = MDP_QUESTION_NONE};
    Command command = {
        .arguments_help = "FILE|ENV",
        .help =
            "Draws a world with the values of its states and the actions of a policy: the optimal one, or a given one. Grids are drawn as grids, other worlds as a table.\n"
            "    tune mdp show FrozenLake-v1\n"
            "    tune mdp show Gridworld5x5 --policy uniform --html grid.html",
    };
    const Option options[] = {
        {"--policy", OPTION_TEXT, &show.policy, "FILE|uniform", "show this policy and its values instead of the optimal one"},
        {"--svg", OPTION_TEXT, &show.svg, "FILE", "write a drawing of the grid as SVG"},
        {"--html", OPTION_TEXT, &show.html, "FILE", "write a self-contained HTML page"},
        {"-o", OPTION_TEXT, &show.output, "FILE",
         "write a page (.html), a drawing (.svg) or the numbers (.json) by the name's ending, else the text"},
        MDP_QUESTION_OPTIONS(show.question),
        {0},
    };
    return command_main(&command, argc, argv, options, show_world, &show);
}
