/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the CPU's planner: those with much scratch memory record its size and return. */
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

/* Doubles are for the reference device, which has no scratch memory. */
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

static DType plan_product_dtype(DType a) { return a == DT_F64 ? a : product_dtype(a); }

void cpu_plan_kernels(Device *planner) {
    planner->product_dtype = plan_product_dtype;
    planner->matmul = plan_matmul;
    planner->attention = plan_attention;
    planner->attention_backward = plan_attention_backward;
    planner->token_logprobs = plan_token_logprobs;
    planner->token_logits = plan_token_logits;
    planner->token_logprobs_backward = plan_token_logprobs_backward;
}
