/* SPDX-License-Identifier: Apache-2.0 */
/* The reference matrix product. */
#include "lib/tensor/ref/ref.h"

void ref_matmul(const Matmul *args) {
    const Tensor *a = args->a, *b = args->b;
    int64_t m = args->c->shape[0], n = args->c->shape[1], k = a->shape[args->transpose_a ? 0 : 1];
    ASSERT(a->shape[args->transpose_a ? 1 : 0] == m && b->shape[args->transpose_b ? 0 : 1] == n && b->shape[args->transpose_b ? 1 : 0] == k,
           "product of (%lld,%lld)%s and (%lld,%lld)%s into (%lld,%lld)", (long long)a->shape[0], (long long)a->shape[1],
           args->transpose_a ? "^T" : "", (long long)b->shape[0], (long long)b->shape[1], args->transpose_b ? "^T" : "", (long long)m, (long long)n);
    if (args->branches) {
        matmul_by_rows(args, ref_matmul);
        if (args->next) ref_matmul(args->next);
        return;
    }
    if (args->down)
        ref_matmul(&(Matmul){.a = a,
                             .b = args->down,
                             .c = args->low,
                             .transpose_a = args->transpose_a,
                             .transpose_b = args->transpose_down,
                             .alpha = args->down_alpha});
    const Tensor *more = args->more_a, *more_b = args->more_b, *addend = args->addend;
    int64_t rank = more ? more->shape[1] : 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, branch = 0;
            for (int64_t l = 0; l < k; l++)
                sum += element_get(a, args->transpose_a ? l * m + i : i * k + l) * ref_weight(b, args->transpose_b ? j * k + l : l * n + j);
            for (int64_t l = 0; l < rank; l++)
                branch += element_get(more, i * rank + l) * element_get(more_b, args->transpose_more_b ? j * rank + l : l * n + j);
            double value =
                args->alpha * sum + args->more_alpha * branch + (addend ? args->beta * element_get(addend, addend->n_dims == 1 ? j : i * n + j) : 0);
            ref_put(args->c, i * n + j, value, addend ? 0 : args->beta);
        }
    if (args->next) ref_matmul(args->next);
}
