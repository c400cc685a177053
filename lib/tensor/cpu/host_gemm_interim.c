/* Products by plain OpenBLAS calls: what links until host_gemm.c lands, which replaces this file. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"
#include "lib/tensor/ref/ref.h"

Status gemm_configure(const char *gemm) { return gemm && strcmp(gemm, "auto") && strcmp(gemm, "openblas") ? status_fail(ST_USAGE, "unknown product library '%s'", gemm) : ST_OK; }
void gemm_describe(CpuInfo *info) { info->gemm_f32 = "openblas", info->gemm_bf16 = "converted to f32"; }
size_t gemm_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) { return (void)rows, (void)cols, (void)stored, (void)compute, (void)backward, 0; }
void gemm_packed_free(void *packed) { free(packed); }
size_t gemm_scratch_bytes(void) { return 0; }

static float *as_floats(const Tensor *t) {
    int64_t n = tensor_count(t);
    float *out = malloc((size_t)(n + 1) * sizeof *out);
    ASSERT(out, "out of memory for %lld floats", (long long)n);
    Tensor view = *t;
    view.dtype = DT_F32;
    view.data = out;
    device_cpu()->copy(t, &view);
    return out;
}

void cpu_matmul(const Matmul *args) {
    if (args->a->dtype == DT_F64) {
        ref_matmul(args);
        return;
    }
    int64_t m = args->c->shape[0], n = args->c->shape[1], k = args->a->shape[args->transpose_a ? 0 : 1];
    float *a = as_floats(args->a), *b = as_floats(args->b), *c = as_floats(args->c);
    if (args->a->dtype == DT_BF16)
        for (int64_t i = 0; i < tensor_count(args->b); i++) b[i] = bf16_to_float(float_to_bf16(b[i]));
    int lda = (int)(args->transpose_a ? m : k), ldb = (int)(args->transpose_b ? k : n);
    if (m && n) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < m; i += 32)
            cblas_sgemm(CblasRowMajor, args->transpose_a ? CblasTrans : CblasNoTrans, args->transpose_b ? CblasTrans : CblasNoTrans, (int)MIN(32, m - i), (int)n, (int)k,
                        (float)args->alpha, a + (args->transpose_a ? i : i * k), lda, b, ldb, (float)args->beta, c + i * n, (int)n);
    }
    Tensor view = *args->c;
    view.dtype = DT_F32;
    view.data = c;
    device_cpu()->copy(&view, args->c);
    free(a), free(b), free(c);
}

void cpu_token_logprobs(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, Tensor *logprob, Tensor *entropy, Tensor *mean, Tensor *logsumexp) {
    ref_token_logprobs(args, hidden, head, targets, logprob, entropy, mean, logsumexp);
}

void cpu_token_logprobs_backward(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const Tensor *logsumexp, const Tensor *entropy,
                                 const Tensor *dlogprob, const Tensor *dentropy, const Tensor *dmean, Tensor *dhidden, Tensor *dhead) {
    ref_token_logprobs_backward(args, hidden, head, targets, logsumexp, entropy, dlogprob, dentropy, dmean, dhidden, dhead);
}
