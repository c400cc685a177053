/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the world that a command line names, and the options how to solve it. */
#include <math.h>
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/mdp/cmd_mdp.h"
#include "rl/env/env.h"

Status mdp_argument(const char *text, Arena *arena, const Yaml **node) {
    Yaml *read = arena_zero(arena, sizeof *read);
    if (!read) return ST_RESOURCE;
    *read = (Yaml){.kind = YAML_SCALAR, .text = text};
    if (text[0] == '{') TRY(yaml_read_text(text, strlen(text), "environment", arena, &read));
    yaml_forget_lines(read); /* messages would call it a line of a recipe */
    *node = read;
    return ST_OK;
}

static Status say_unreachable(const NamedMdp *world) {
    int64_t n = world->mdp.n_states, count = 0;
    Str text = {0};
    Arena *arena = arena_new(0);
    bool *reachable = arena ? arena_alloc(arena, (size_t)n) : NULL;
    Status status = reachable ? mdp_reachable(world, reachable) : ST_RESOURCE;
    for (int64_t s = 0; s < n && status == ST_OK; s++) {
        if (reachable[s] || world->mdp.terminal[s] || ++count > 5) continue;
        if (count > 1) str_append(&text, ", ");
        mdp_append_state(&text, world, s);
    }
    if (count > 0)
        show_line("note: %lld of %lld state%s cannot be reached from the start: %s%s", (long long)count, (long long)n, plural(n), str_text(&text),
                  count > 5 ? ", ..." : "");
    str_release(&text);
    arena_free(arena);
    return status;
}

/* Notes actions without transitions: a forgotten one looks the same as one that the state does not have. */
static void say_missing(const NamedMdp *world) {
    const Mdp *mdp = &world->mdp;
    int64_t count = 0, all = 0;
    Str text = {0};
    for (int64_t s = 0; s < mdp->n_states; s++) {
        for (int64_t a = 0; a < mdp->n_actions && !mdp->terminal[s]; a++, all++) {
            if (mdp_has(mdp, s, a) || ++count > 3) continue;
            str_append(&text, count > 1 ? "; " : "");
            mdp_append_state(&text, world, s);
            str_append(&text, ", ");
            mdp_append_action(&text, world, a);
        }
    }
    if (count > 0)
        show_line("note: %lld of %lld pairs of state and action have no transitions and are never chosen: %s%s", (long long)count, (long long)all,
                  str_text(&text), count > 3 ? "; ..." : "");
    str_release(&text);
}

static Status open_world(const char *text, double gamma, NamedMdp **world) {
    Arena *arena = arena_new(0);
    const Yaml *node;
    Str spec = {0};
    Status status = arena ? mdp_argument(text, arena, &node) : ST_RESOURCE;
    if (status == ST_OK) status = env_spec(node, &spec);
    if (status == ST_OK) status = env_open_world(str_text(&spec), gamma, world);
    str_release(&spec);
    arena_free(arena);
    return status;
}

Status mdp_question_open(const char *spec, MdpQuestion *question, NamedMdp **world) {
    if (!isnan(question->gamma) && !(question->gamma >= 0 && question->gamma <= 1))
        return status_fail(ST_USAGE, "--gamma must be from 0 to 1, not %g", question->gamma);
    if (!isnan(question->tolerance) && !(question->tolerance > 0))
        return status_fail(ST_USAGE, "--tolerance must be above 0, not %g", question->tolerance);
    if (!isnan(question->tolerance)) question->options.tolerance = question->tolerance;
    TRY(open_world(spec, question->gamma, world));
    say_missing(*world);
    Status status = say_unreachable(*world);
    if (status != ST_OK) named_mdp_free(*world);
    return status;
}
