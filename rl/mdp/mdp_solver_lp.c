/* SPDX-License-Identifier: Apache-2.0 */
/* Linear programming (d'Epenoux 1963): min sum V subject to V(s) >= q(s, a). The constraints met with equality give the best policy, whose values are
 * then recomputed, since those of the simplex method are accurate to about 1e-9. */
#include "lib/base/log.h"
#include "rl/mdp/mdp_form.h"

#if HAVE_GLPK
#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* Drops coefficients that are rounding errors, such as 1 - 1/3 - 1/3 - 1/3, which scaling would make large, and probabilities such as 1e-300, at
 * which GLPK gives up. */
static int keep_large(int n, int *columns, double *values, double least) {
    int kept = 0;
    for (int i = 1; i <= n; i++) {
        if (fabs(values[i]) <= least) continue;
        columns[++kept] = columns[i];
        values[kept] = values[i];
    }
    return kept;
}

/* One constraint per row: V(s) - gamma sum p V(next) >= r. */
static Status add_rows(const MdpForm *form, glp_prob *lp) {
    int *columns = malloc(((size_t)form->longest + 2) * sizeof *columns), *place = calloc((size_t)form->n + 1, sizeof *place);
    double *values = malloc(((size_t)form->longest + 2) * sizeof *values);
    Status status = columns && place && values ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    for (int32_t s = 0; s < form->n && status == ST_OK; s++) {
        if (!form_is_nonterminal(form, s)) continue;
        for (int64_t row = form_first(form, s); row < form_first(form, s + 1); row++) {
            int n = 1;
            columns[1] = s + 1;
            values[1] = 1;
            place[s] = 1;
            for (int64_t k = form->begin[row]; k < form->begin[row + 1]; k++) {
                int32_t next = form->next[k];
                if (next >= form->n || !form_is_nonterminal(form, next)) continue;
                if (place[next] == 0) {
                    place[next] = ++n;
                    columns[n] = next + 1;
                    values[n] = 0;
                }
                values[place[next]] -= form->gamma * form->probability[k];
            }
            for (int i = 1; i <= n; i++) place[columns[i] - 1] = 0;
            n = keep_large(n, columns, values, (double)(form->begin[row + 1] - form->begin[row] + 2) * UNIT_ROUNDOFF);
            glp_set_mat_row(lp, (int)row + 1, n, columns, values);
            glp_set_row_bnds(lp, (int)row + 1, GLP_LO, form->reward[row], 0);
        }
    }
    free(columns);
    free(place);
    free(values);
    return status;
}

static Status solve_lp(MdpWork *work, glp_prob *lp, int *fault) {
    const MdpForm *form = work->form;
    glp_smcp parameters;
    glp_term_out(GLP_OFF);
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_rows(lp, (int)form->n_rows);
    glp_add_cols(lp, form->n);
    for (int32_t s = 0; s < form->n; s++) {
        glp_set_obj_coef(lp, s + 1, form_is_nonterminal(form, s) ? 1 : 0);
        glp_set_col_bnds(lp, s + 1, form_is_nonterminal(form, s) ? GLP_FR : GLP_FX, 0, 0);
    }
    TRY(add_rows(form, lp));
    glp_init_smcp(&parameters);
    parameters.msg_lev = GLP_MSG_OFF;
    parameters.meth = GLP_DUALP;
    parameters.it_lim = (int)MIN(work->limit, INT32_MAX);
    glp_scale_prob(lp, GLP_SF_AUTO);
    *fault = glp_simplex(lp, &parameters);
    if (*fault == 0 && glp_get_status(lp) != GLP_OPT) *fault = glp_get_status(lp); /* a solution exists, so finding none is a failure of GLPK */
    work->iterations += glp_get_it_cnt(lp);
    for (int32_t s = 0; s < form->n && (*fault == 0 || *fault == GLP_EITLIM); s++) work->V[s] = glp_get_col_prim(lp, s + 1);
    return ST_OK;
}

/* GLPK's simplex fails on some grids with gamma 1, whatever the scaling and the initial basis. Policy iteration, which is a simplex method with many
 * pivots at a time (Ye 2011), then starts from scratch. */
static Status without_glpk(MdpWork *work, int fault, MdpSolution *solution) {
    int64_t before = work->iterations;
    log_message(LOG_WARNING, "GLPK could not solve the linear program (its code %d): policy iteration does", fault);
    memset(work->V, 0, ((size_t)work->form->n + 1) * sizeof *work->V);
    work->iterations = 0;
    Status status = mdp_solver_pi(work, solution);
    work->iterations += before;
    return status;
}

static void escape(void *to) { longjmp(*(jmp_buf *)to, 1); }

enum { GAVE_UP = -1 };

/* On an internal error GLPK would end the process: the hook jumps out first. All its memory belongs to the GLPK environment. */
static Status run_glpk(MdpWork *work, int *fault) {
    jmp_buf before;
    if (setjmp(before) != 0) {
        *fault = GAVE_UP;
        glp_free_env();
        return ST_OK;
    }
    glp_error_hook(escape, &before);
    glp_prob *lp = glp_create_prob();
    Status status = lp ? solve_lp(work, lp, fault) : status_fail(ST_RESOURCE, "out of memory");
    glp_error_hook(NULL, NULL);
    glp_free_env();
    return status;
}

Status mdp_solver_lp(MdpWork *work, MdpSolution *solution) {
    const MdpForm *form = work->form;
    if (form->n_rows >= INT32_MAX) return status_fail(ST_USAGE, "%lld choices are more than GLPK can take", (long long)form->n_rows);
    if (work->iterations > 0) return mdp_solver_pi(work, solution); /* called again: the certificate was not satisfied */
    int fault = 0;
    TRY(run_glpk(work, &fault));
    if (work->iterations >= work->limit) return ST_OK;
    if (fault != 0) return without_glpk(work, fault, solution);
    /* GLPK's values are accurate to some nine digits: policy iteration starts from their greedy policy, which may have no values with gamma 1. */
    Status status = mdp_solver_pi(work, solution);
    return status == ST_NUMERIC ? without_glpk(work, fault, solution) : status;
}
#else
Status mdp_solver_lp(MdpWork *work, MdpSolution *solution) {
    (void)work;
    (void)solution;
    status_fail(ST_USAGE, "method 'lp' needs GLPK, which this program was built without");
    return status_hint(ST_USAGE, "install libglpk-dev (glpk-devel, glpk) and build again, or use another method: pi, vi, mpi");
}
#endif
