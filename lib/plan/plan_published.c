/* SPDX-License-Identifier: Apache-2.0 */
/* Published figures. Each is computed here by the formulas that plans use. */
#include "lib/plan/plan_published.h"

#include "lib/base/base.h"

double megatron_parameters(double layers, double hidden, double V, double s) {
    return 12 * layers * hidden * hidden * (1 + 13 / (12 * hidden) + (V + s) / (12 * layers * hidden));
}

double megatron_step_work(double rows, double s, double layers, double hidden, double V) {
    return 96 * rows * s * layers * hidden * hidden * (1 + s / (6 * hidden) + V / (16 * layers * hidden));
}

double megatron_days(double tokens, double parameters, double gpus, double rate) { return 8 * tokens * parameters / (gpus * rate) / 86400; }

double claim_rate(double psi, double tokens, double devices, double hours, double work) { return work * psi * tokens / (devices * hours * 3600); }

typedef struct List {
    PlanPublished *rows;
    size_t n;
} List;

static void list_add(List *list, PlanPublished row) {
    ASSERT(list->n < PLAN_PUBLISHED, "more than %d published figures", PLAN_PUBLISHED);
    list->rows[list->n++] = row;
}

/* GB of states a rank, stages 1, 2, 3. */
static const struct {
    const char *model;
    double psi, ranks, published[3];
} zero_table[] = {
    {"7.5B on 4 ranks", 7.5e9, 4, {52.5, 41.25, 30}},       {"7.5B on 16 ranks", 7.5e9, 16, {35.6, 21.6, 7.5}},
    {"7.5B on 64 ranks", 7.5e9, 64, {31.4, 16.6, 1.88}},    {"7.5B on 256 ranks", 7.5e9, 256, {30.4, 15.4, .47}},
    {"7.5B on 1024 ranks", 7.5e9, 1024, {30.1, 15.1, .12}}, {"128B on 4 ranks", 128e9, 4, {896, 704, 512}},
    {"128B on 16 ranks", 128e9, 16, {608, 368, 128}},       {"128B on 64 ranks", 128e9, 64, {536, 284, 32}},
    {"128B on 256 ranks", 128e9, 256, {518, 263, 8}},       {"128B on 1024 ranks", 128e9, 1024, {513, 257, 2}},
    {"1T on 4 ranks", 1e12, 4, {7000, 5500, 4000}},         {"1T on 16 ranks", 1e12, 16, {4750, 2875, 1000}},
    {"1T on 64 ranks", 1e12, 64, {4187, 2218, 250}},        {"1T on 256 ranks", 1e12, 256, {4046, 2054, 62.5}},
    {"1T on 1024 ranks", 1e12, 1024, {4011, 2013, 15.6}},
};

static void add_zero(List *list) {
    static const char *const sources[] = {"ZeRO-1 (1910.02054)", "ZeRO-2 (1910.02054)", "ZeRO-3 (1910.02054)"};
    for (size_t i = 0; i < COUNT_OF(zero_table); i++)
        for (int stage = 0; stage < 3; stage++)
            list_add(list,
                     (PlanPublished){
                         sources[stage], zero_table[i].model, "GB a rank", zero_table[i].published[stage],
                         plan_state_bytes(&plan_paper, (PlanShard)(SHARD_OPTIMIZER + stage), zero_table[i].psi, zero_table[i].ranks) / 1e9, ""});
}

static void add_pipelines(List *list) {
    list_add(list, (PlanPublished){"GPipe (1811.06965)", "Transformer, 8 stages, 32 micro-batches", "x speed", 6.3, plan_pipe_ideal_speedup(8, 32),
                                   "ideal; equal stages and free messages would have to hold"});
    list_add(list, (PlanPublished){"GPipe (1811.06965)", "Transformer, 4 stages, 32 micro-batches", "x speed", 3.4, plan_pipe_ideal_speedup(4, 32),
                                   "ideal; equal stages and free messages would have to hold"});
    list_add(list, (PlanPublished){"GPipe (1811.06965)", "AmoebaNet, 8 stages, 32 micro-batches", "x speed", 3.48, plan_pipe_ideal_speedup(8, 32),
                                   "its stages are uneven: ours is for equal ones"});
    list_add(list, (PlanPublished){"GPipe (1811.06965)", "AmoebaNet, 4 stages, 32 micro-batches", "x speed", 1.84, plan_pipe_ideal_speedup(4, 32),
                                   "its stages are uneven: ours is for equal ones"});
    list_add(list, (PlanPublished){"PipeDream (1806.03377)", "VGG16 on 8 Titan X, 7-1", "x speed", 7.04, 8,
                                   "ours: all 8 always busy, as a pipeline without flush is with equal stages"});
    list_add(list, (PlanPublished){"PipeDream (1806.03377)", "VGG16 on 8 V100, 7-1", "x speed", 6.98, 8,
                                   "ours: all 8 always busy; messages do not shrink with a faster GPU"});
}

static const struct {
    const char *what;
    double heads, hidden, layers, gpus, rows, rate, billions, seconds;
} megatron_table[] = {
    {"1.7B, t 1, p 1, 32 GPUs", 24, 2304, 24, 32, 512, 137, 1.7, 3.528},
    {"3.6B, t 2, p 1, 64 GPUs", 32, 3072, 30, 64, 512, 138, 3.6, 3.697},
    {"7.5B, t 4, p 1, 128 GPUs", 32, 4096, 36, 128, 512, 142, 7.5, 3.696},
    {"18.4B, t 8, p 1, 256 GPUs", 48, 6144, 40, 256, 1024, 135, 18.4, 9.399},
    {"39.1B, t 8, p 2, 512 GPUs", 64, 8192, 48, 512, 1536, 138, 39.1, 14.453},
    {"76.1B, t 8, p 4, 1024 GPUs", 80, 10240, 60, 1024, 1792, 140, 76.1, 16.058},
    {"145.6B, t 8, p 8, 1536 GPUs", 96, 12288, 80, 1536, 2304, 148, 145.6, 24.817},
    {"310.1B, t 8, p 16, 1920 GPUs", 128, 16384, 96, 1920, 2160, 155, 310.1, 37.614},
    {"529.6B, t 8, p 35, 2520 GPUs", 128, 20480, 105, 2520, 2520, 163, 529.6, 54.085},
    {"1008.0B, t 8, p 64, 3072 GPUs", 160, 25600, 128, 3072, 3072, 163, 1008.0, 102.630},
};

static void add_megatron(List *list) {
    const double V = 51200, s = 2048;
    for (size_t i = 0; i < COUNT_OF(megatron_table); i++) {
        double layers = megatron_table[i].layers, hidden = megatron_table[i].hidden;
        list_add(list, (PlanPublished){"Megatron-LM (2104.04473)", megatron_table[i].what, "billion parameters", megatron_table[i].billions,
                                       megatron_parameters(layers, hidden, V, s) / 1e9, ""});
        list_add(list, (PlanPublished){"Megatron-LM (2104.04473)", megatron_table[i].what, "s a step at its TF/s", megatron_table[i].seconds,
                                       megatron_step_work(megatron_table[i].rows, s, layers, hidden, V) /
                                           (megatron_table[i].gpus * megatron_table[i].rate * 1e12),
                                       ""});
    }
    list_add(list, (PlanPublished){"Megatron-LM (2104.04473)", "175B, 300B tokens, 1024 A100 at 140 TF/s", "days", 34,
                                   megatron_days(300e9, 175e9, 1024, 140e12), ""});
    list_add(list, (PlanPublished){"Megatron-LM (2104.04473)", "1008B, 450B tokens, 3072 A100 at 163 TF/s", "days", 84,
                                   megatron_days(450e9, 1008e9, 3072, 163e12), ""});
}

/* "Fine-tuning a 40B model on 860M tokens by 8 L40S takes 7 hours": both kinds of training, at the dense 16-bit rate. */
static void add_claims(List *list) {
    const double psi = 40e9, tokens = 860e6, devices = 8, hours = 7, rate = 362e12, fp8 = 733e12;
    list_add(list,
             (PlanPublished){"NVIDIA L40S, a claim", "40B, 860M tokens, 8 L40S: full", "hours", hours, 6 * psi * tokens / (devices * rate) / 3600,
                             "ours at the full 16-bit rate; 7 h need 1024 TF/s a GPU, more than its 733 of fp8"});
    list_add(list,
             (PlanPublished){"NVIDIA L40S, a claim", "40B, 860M tokens, 8 L40S: adapter", "hours", hours, 4 * psi * tokens / (devices * rate) / 3600,
                             "ours at the full 16-bit rate; 7 h need 683 TF/s a GPU: fp8 at 93 % of its peak"});
    list_add(list,
             (PlanPublished){"NVIDIA L40S, a claim", "the same, adapter, all in fp8 at its peak", "hours", hours,
                             4 * psi * tokens / (devices * fp8) / 3600, "frozen weights, activations and every product in fp8 would have to hold"});
}

static void add_zero_plus(List *list) {
    list_add(list, (PlanPublished){"ZeRO++ (2306.10209)", "elements sent a step, in psi", "psi", .75, 3,
                                   "ours is ZeRO-3; .75 needs int8 weights, a second shard in the host and int4 gradients"});
    list_add(list, (PlanPublished){"ZeRO-3 against t x p x d (2104.04473)", "175B on 1536 A100", "TF/s a GPU", 44, 141,
                                   "ours: the paper's own t x p x d; ZeRO-3 moves 3 psi a micro-batch, which exceeds its time of work"});
}

size_t plan_published(PlanPublished rows[PLAN_PUBLISHED]) {
    List list = {rows, 0};
    add_zero(&list);
    add_pipelines(&list);
    add_megatron(&list);
    add_claims(&list);
    add_zero_plus(&list);
    return list.n;
}
