/* The reference matrix product. */
#include "lib/tensor/ref/ref.h"

void ref_matmul(const Matmul *args) {
    const Tensor *a = args->a, *b = args->b;
    int64_t m = args->c->shape[0], n = args->c->shape[1], k = a->shape[args->transpose_a ? 0 : 1];
    ASSERT(a->shape[args->transpose_a ? 1 : 0] == m && b->shape[args->transpose_b ? 0 : 1] == n && b->shape[args->transpose_b ? 1 : 0] == k,
           "product of (%lld,%lld)%s and (%lld,%lld)%s into (%lld,%lld)", (long long)a->shape[0], (long long)a->shape[1], args->transpose_a ? "^T" : "",
           (long long)b->shape[0], (long long)b->shape[1], args->transpose_b ? "^T" : "", (long long)m, (long long)n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += tensor_get(a, args->transpose_a ? l * m + i : i * k + l) * tensor_get(b, args->transpose_b ? j * k + l : l * n + j);
            ref_put(args->c, i * n + j, args->alpha * sum, args->beta);
        }
}
