/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds as SVG and as an HTML page. */
#include <math.h>

#include "rl/mdp/mdp_show_parts.h"

enum { CELL = 64, MOST_CELLS = 40000 };

static void append_escaped(Str *text, const char *plain) {
    for (; *plain; plain++) {
        if (*plain == '<')
            str_append(text, "&lt;");
        else if (*plain == '>')
            str_append(text, "&gt;");
        else if (*plain == '&')
            str_append(text, "&amp;");
        else if (*plain == '"')
            str_append(text, "&quot;");
        else
            str_append_char(text, *plain);
    }
}

/* From sand to deep green; special cells have colours of their own. */
static void append_fill(const MdpPicture *picture, ShowRange range, int64_t state, Str *svg) {
    double share = show_share(range, picture->V[state]);
    char letter = show_letter(picture->world, state);
    if (letter == 'H' || letter == 'C')
        str_append(svg, "#33415c");
    else if (letter == '#')
        str_append(svg, "#999999");
    else if (letter == 'G')
        str_append(svg, "#f2b134");
    else
        str_printf(svg, "#%02x%02x%02x", (int)(245 - 195 * share), (int)(238 - 98 * share), (int)(220 - 130 * share));
}

/* An arrow from the middle of the upper part, with a length proportional to the action's probability. */
static void append_arrow(const ShowDirection *way, double probability, double x, double y, const char *colour, Str *svg) {
    double length = 8 + 10 * probability, norm = hypot(way->right, way->down), dx = way->right / norm, dy = way->down / norm;
    double tip_x = x + dx * length, tip_y = y + dy * length, back_x = tip_x - 6 * dx, back_y = tip_y - 6 * dy;
    str_printf(svg, "<path d=\"M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1fL%.1f %.1f\" stroke=\"%s\" stroke-width=\"2\" fill=\"none\"/>\n", x, y, tip_x,
               tip_y, back_x - 4 * dy, back_y + 4 * dx, tip_x, tip_y, back_x + 4 * dy, back_y - 4 * dx, colour);
}

static void append_policy(const MdpPicture *picture, int64_t state, double x, double y, const char *colour, Str *svg) {
    const NamedMdp *world = picture->world;
    for (int64_t a = 0; a < world->mdp.n_actions; a++) {
        double probability = picture->policy[state * world->mdp.n_actions + a];
        const ShowDirection *way = show_direction(world, a);
        if (!(probability > 0)) continue;
        if (way) {
            append_arrow(way, probability, x, y, colour, svg);
        } else if (show_is_chosen(picture, state, a)) {
            str_printf(svg, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">", x, y + 5, colour);
            if (world->action_names)
                append_escaped(svg, world->action_names[a]);
            else
                str_printf(svg, "%lld", (long long)a);
            str_append(svg, "</text>\n");
            return;
        }
    }
}

static void append_cell(const MdpPicture *picture, ShowRange range, int64_t state, Str *svg) {
    const NamedMdp *world = picture->world;
    double x = (double)(state % world->columns) * CELL, y = (double)(state / world->columns) * CELL;
    char letter = show_letter(world, state), value[16];
    bool dark = show_share(range, picture->V[state]) > 0.7 || letter == 'H' || letter == 'C';
    const char *colour = dark && letter != 'G' ? "#ffffff" : "#222222";
    str_printf(svg, "<rect x=\"%g\" y=\"%g\" width=\"%d\" height=\"%d\" stroke=\"#ffffff\" fill=\"", x, y, CELL, CELL);
    append_fill(picture, range, state, svg);
    str_append(svg, "\"><title>");
    Str name = {0};
    mdp_append_state(&name, world, state);
    append_escaped(svg, str_text(&name));
    str_printf(svg, ": %.10g</title></rect>\n", picture->V[state]);
    str_release(&name);
    if (letter != ' ') str_printf(svg, "<text x=\"%g\" y=\"%g\" font-weight=\"bold\" fill=\"%s\">%c</text>\n", x + 9, y + 16, colour, letter);
    if (!show_is_playable(world, state)) return;
    append_policy(picture, state, x + CELL / 2.0, y + 24, colour, svg);
    show_value(picture->V[state], value);
    str_printf(svg, "<text x=\"%g\" y=\"%g\" fill=\"%s\">%s</text>\n", x + CELL / 2.0, y + CELL - 7, colour, value);
}

static void append_svg(const MdpPicture *picture, Str *svg) {
    const NamedMdp *world = picture->world;
    int width = world->columns * CELL, height = world->rows * CELL;
    ShowRange range = show_range(picture);
    str_printf(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n<title>",
        width, height, width, height);
    append_escaped(svg, picture->title);
    str_append(svg, "</title>\n");
    for (int64_t s = 0; s < world->mdp.n_states; s++) append_cell(picture, range, s, svg);
    str_append(svg, "</svg>\n");
}

Status mdp_show_svg(const MdpPicture *picture, Str *svg) {
    if (!mdp_is_grid(picture->world))
        return status_hint(status_fail(ST_INPUT, "'%s' is not a grid that can be drawn", picture->title),
                           "--html makes a page with a table of any world");
    if (picture->world->mdp.n_states > MOST_CELLS)
        return status_fail(ST_INPUT, "'%s' has %d cells, more than the %d that are drawn", picture->title, (int)picture->world->mdp.n_states,
                           MOST_CELLS);
    append_svg(picture, svg);
    return ST_OK;
}

static void append_table(const MdpPicture *picture, Str *html) {
    const NamedMdp *world = picture->world;
    str_append(html, "<table><thead><tr><th>state</th><th>value</th><th>policy</th></tr></thead><tbody>\n");
    for (int64_t s = 0; s < world->mdp.n_states; s++) {
        Str name = {0}, policy = {0};
        mdp_append_state(&name, world, s);
        if (world->mdp.terminal[s])
            str_append(&policy, "end");
        else
            show_append_policy(&policy, picture, s);
        str_append(html, "<tr><td>");
        append_escaped(html, str_text(&name));
        str_printf(html, "</td><td class=\"n\">%.10g</td><td>", picture->V[s]);
        append_escaped(html, str_text(&policy));
        str_append(html, "</td></tr>\n");
        str_release(&name);
        str_release(&policy);
    }
    str_append(html, "</tbody></table>\n");
}

void mdp_show_html(const MdpPicture *picture, Str *html) {
    const Mdp *mdp = &picture->world->mdp;
    str_append(html,
               "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>");
    append_escaped(html, picture->title);
    str_append(
        html,
        "</title><style>:root{color-scheme:light dark}body{font:15px/1.4 sans-serif;margin:2em auto;max-width:60em;padding:0 1em}svg{max-width:100%;height:auto}"
        "table{border-collapse:collapse;margin-top:1.5em}th,td{padding:.15em .9em .15em 0;text-align:left;border-bottom:1px solid #8884}.n{font-variant-numeric:tabular-nums;text-align:right}</style></head><body>\n<h1>");
    append_escaped(html, picture->title);
    str_printf(html, "</h1>\n<p>%d state%s, %d action%s, discount %g.</p>\n", (int)mdp->n_states, plural(mdp->n_states), (int)mdp->n_actions,
               plural(mdp->n_actions), mdp->gamma);
    if (mdp_is_grid(picture->world) && mdp->n_states <= MOST_CELLS) append_svg(picture, html);
    append_table(picture, html);
    str_append(html, "</body></html>\n");
}
