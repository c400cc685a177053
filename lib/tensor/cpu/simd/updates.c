/* SPDX-License-Identifier: Apache-2.0 */
/* Optimiser updates of f32 parameters. AdamW is arXiv 1711.05101 in torch's order of operations; the constants of a step are computed in double. */
#include "lib/tensor/cpu/blocks.h"

static bool all_f32(const Tensor *a, const Tensor *b, const Tensor *c) {
    return a->dtype == DT_F32 && (!b || b->dtype == DT_F32) && (!c || c->dtype == DT_F32);
}

typedef struct AdamwStep {
    float size, root, decay, new1, old2, new2, small, scale;
} AdamwStep;

static void adamw_block(const AdamwStep *constants, Tensor *param, const Tensor *grad, Tensor *m, Tensor *v, int64_t begin, int64_t end) {
    const AdamwStep step = *constants;
    float buffer[RUN];
    for (RUNS(at, n, begin, end)) {
        const float *restrict g = run_read(grad, at, n, buffer);
        float *restrict p = (float *)param->elements + at, *restrict first = (float *)m->elements + at, *restrict second = (float *)v->elements + at;
        for (int64_t i = 0; i < n; i++) {
            float scaled = step.scale * g[i];
            first[i] += step.new1 * (scaled - first[i]);
            second[i] = step.old2 * second[i] + step.new2 * scaled * scaled;
            p[i] = p[i] * step.decay - step.size * first[i] / (sqrtf(second[i]) / step.root + step.small);
        }
    }
}

void ISA_FN(adamw)(Tensor *param, const Tensor *grad, Tensor *m, Tensor *v, double grad_scale, double lr, double beta1, double beta2, double eps,
                   double weight_decay, int64_t step) {
    if (!all_f32(param, m, v) || !CPU_READS(grad)) {
        device_reference()->adamw(param, grad, m, v, grad_scale, lr, beta1, beta2, eps, weight_decay, step);
        return;
    }
    int64_t count = tensor_count(param);
    AdamwStep constants = {.size = (float)(lr / (1 - pow(beta1, (double)step))),
                           .root = (float)sqrt(1 - pow(beta2, (double)step)),
                           .decay = (float)(1 - lr * weight_decay),
                           .new1 = (float)(1 - beta1),
                           .old2 = (float)beta2,
                           .new2 = (float)(1 - beta2),
                           .small = (float)eps,
                           .scale = (float)grad_scale};
    if (count <= CPU_SERIAL) {
        adamw_block(&constants, param, grad, m, v, 0, count);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < count; begin += CPU_BLOCK) adamw_block(&constants, param, grad, m, v, begin, MIN(begin + CPU_BLOCK, count));
}

void ISA_FN(sgd)(Tensor *param, const Tensor *grad, Tensor *velocity, double grad_scale, double lr, double momentum, double weight_decay,
                 int64_t step) {
    if (!all_f32(param, velocity, NULL) || !CPU_READS(grad)) {
        device_reference()->sgd(param, grad, velocity, grad_scale, lr, momentum, weight_decay, step);
        return;
    }
    int64_t count = tensor_count(param);
    float scale = (float)grad_scale, rate = (float)lr, keep = (float)momentum, decay = (float)weight_decay;
#pragma omp parallel for schedule(static) if (count > CPU_SERIAL)
    for (int64_t begin = 0; begin < count; begin += CPU_BLOCK) {
        float buffer[RUN], move[RUN];
        for (RUNS(at, n, begin, MIN(begin + CPU_BLOCK, count))) {
            const float *g = run_read(grad, at, n, buffer);
            float *p = (float *)param->elements + at, *speed = velocity ? (float *)velocity->elements + at : NULL;
            for (int64_t i = 0; i < n; i++) move[i] = scale * g[i] + decay * p[i];
            for (int64_t i = 0; speed && i < n; i++) speed[i] = move[i] += keep * speed[i];
            for (int64_t i = 0; i < n; i++) p[i] -= rate * move[i];
        }
    }
}
