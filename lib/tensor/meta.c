/* SPDX-License-Identifier: Apache-2.0 */
/* The device that computes nothing: a step on it allocates what the real step will, so that the memory is known before the first real step. */
#include "lib/tensor/tensor.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

#define KERNEL(name, arguments) \
    static void meta_##name arguments {}
#include "lib/tensor/kernels.def"
#undef KERNEL

/* Kernels with much scratch memory: the CPU kernel records its size and returns. Doubles are for the reference device, which has no scratch
 * memory. */
#define PLANNED(name, arguments, input, values) \
    static void plan_##name arguments {         \
        if ((input)->dtype == DT_F64) return;   \
        cpu_plan(true);                         \
        device_cpu()->name values;              \
        cpu_plan(false);                        \
    }
PLANNED(matmul, (const Matmul *args), args->a, (args))
PLANNED(attention, (const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp), q,
        (args, q, k, v, y, logsumexp))
PLANNED(attention_backward,
        (const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y, const Tensor *logsumexp, const Tensor *dy,
         const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv),
        q, (args, q, k, v, y, logsumexp, dy, beta, dq, dk, dv))
PLANNED(token_logprobs, (const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const LogprobResults *results),
        hidden, (args, hidden, head, targets, results))
PLANNED(token_logits, (const LogprobArgs *args, const Tensor *hidden, const Tensor *head, Tensor *logits, Tensor *logsumexp), hidden,
        (args, hidden, head, logits, logsumexp))
PLANNED(token_logprobs_backward,
        (const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const LogprobResults *results,
         const TokenLogprobs *grads, Tensor *dhidden, double head_beta, Tensor *dhead),
        hidden, (args, hidden, head, targets, results, grads, dhidden, head_beta, dhead))

static size_t meta_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) { return 0; }
static void meta_packed_free(void *packed) {}
static DType meta_product_dtype(DType a) { return a == DT_F64 ? a : device_cpu()->product_dtype(a); }

const Device *device_meta(void) {
    static Device device;
    if (device.name) return &device;
    device = (Device){
        .name = "meta",
#define KERNEL(name, arguments) .name = meta_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
        .packed_bytes = meta_packed_bytes,
        .packed_free = meta_packed_free,
        .product_dtype = meta_product_dtype,
    };
    device.matmul = plan_matmul;
    device.attention = plan_attention;
    device.attention_backward = plan_attention_backward;
    device.token_logprobs = plan_token_logprobs;
    device.token_logits = plan_token_logits;
    device.token_logprobs_backward = plan_token_logprobs_backward;
    return &device;
}
