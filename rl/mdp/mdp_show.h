/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of a world: a grid with values and arrows, or a table if it is not a grid; for a terminal, as SVG, or as an HTML page.
 *
 *     const MdpPicture picture = {world, solution.V, policy, "FrozenLake-v1"};
 *     mdp_show_text(&picture, true, false, 80, &text);
 *     TRY(mdp_show_svg(&picture, &svg));
 */
#ifndef TUNE_MDP_SHOW_H
#define TUNE_MDP_SHOW_H

#include "rl/mdp/mdp.h"

typedef struct MdpPicture {
    const NamedMdp *world;
    const double *V;      /* (n_states) */
    const double *policy; /* (n_states, n_actions): probabilities; zeros where there is no choice */
    const char *title;
} MdpPicture;

bool mdp_is_grid(const NamedMdp *world); /* rows and columns cover all states */
/* For a terminal of `width` columns; utf8, colour: what the terminal supports. If values do not fit, the grid shows arrows only. */
void mdp_show_text(const MdpPicture *picture, bool utf8, bool colour, int width, Str *text);
/* ST_INPUT if the world is not a grid. */
Status mdp_show_svg(const MdpPicture *picture, Str *svg);
/* A self-contained page: the grid, if it is one, and the table of all states. */
void mdp_show_html(const MdpPicture *picture, Str *html);

#endif
