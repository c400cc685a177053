/* SPDX-License-Identifier: Apache-2.0 */
/* Shows an episode while it is played: a grid with the agent in it, or the numbers of each step. On a terminal the grid is redrawn in place. */
#include <time.h>

#include "cmd/app/terminal.h"
#include "cmd/train/watch.h"
#include "rl/mdp/mdp_show.h"

enum { FRAME_MS = 80 };

static void draw_grid(const Watch *watch, const NamedMdp *world, int64_t state) {
    Str frame = {0};
    if (screen_redraws() && watch->steps > 0) str_printf(&frame, "\033[%dA", world->rows + 1);
    for (int r = 0; r < world->rows; r++) {
        for (int c = 0; c < world->columns; c++) {
            int64_t cell = (int64_t)r * world->columns + c;
            char letter = world->cells && world->cells[cell] >= ' ' && world->cells[cell] < 0x7F ? world->cells[cell] : '.';
            if (cell == state)
                str_append(&frame, screen_has_colour() ? "\033[7m@\033[0m" : "@");
            else
                str_append_char(&frame, letter);
            str_append_char(&frame, c + 1 < world->columns ? ' ' : '\n');
        }
    }
    print_raw(str_text(&frame), frame.len);
    str_release(&frame);
}

static void print_step(const Watch *watch, const Env *env, const double *actions, const double *observation) {
    Str line = {0};
    str_printf(&line, "step %lld  action", (long long)watch->steps + 1);
    for (int64_t i = 0; i < env->action.size; i++) str_printf(&line, " %s", NUMBER(actions[i]));
    str_printf(&line, "  reward %s  ->", NUMBER(env->rewards[0]));
    for (int64_t i = 0; i < env->observation.size; i++) str_printf(&line, " %s", NUMBER(observation[i]));
    if (env->terminated[0]) str_append(&line, "  terminated");
    if (env->truncated[0]) str_append(&line, "  truncated");
    print_result("%s", str_text(&line));
    if (screen_redraws()) print_raw("\033[K", 3);
    print_result("\n");
    str_release(&line);
}

void watch_step(void *context, const Env *env, const double *actions) {
    Watch *watch = context;
    bool ended = env->terminated[0] || env->truncated[0];
    const double *observation = ended ? env->final_observations : env->observations;
    const NamedMdp *world = env->observation.n > 0 ? env->world : NULL;
    if (world && mdp_is_grid(world)) draw_grid(watch, world, (int64_t)observation[0]);
    print_step(watch, env, actions, observation);
    watch->steps = ended ? 0 : watch->steps + 1;
    if (ended) print_result("\n");
    if (!screen_redraws()) return;
    show_result();
    nanosleep(&(struct timespec){.tv_nsec = FRAME_MS * 1000000L}, NULL);
}
