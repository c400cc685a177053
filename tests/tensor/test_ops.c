/* SPDX-License-Identifier: Apache-2.0 */
/* Every op of ops.def: its gradient in double, the fast device against the reference, and what the tape promises (checkpointed layers, known memory,
 * sticky failures). The loops run over the table, so a new op is tested as soon as it has its line. */
#include "lib/base/memory.h"
#include "lib/tensor/ref/ref.h"
#include "lib/tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "tests/support/check.h"

TEST(gradients_match_differences) {
    if (ONE_SET) skip(); /* the reference has no threads */
    GradCheck checks[256];
    int n = gradcheck_ops(checks, (int)COUNT_OF(checks));
    assert_true(n >= n_op_infos);
    int failed = 0;
    for (int i = 0; i < n; i++) {
        if (checks[i].max_error < 1e-6) continue;
        failed++;
        print_error("op %s, example %d: gradient of input %d element %lld is %.12g, differences say %.12g (error %.3g, allowed 1e-6)\n", checks[i].op,
                    checks[i].variant, checks[i].input, (long long)checks[i].element, checks[i].got, checks[i].expected, checks[i].max_error);
    }
    assert_int_equal(failed, 0);
}

enum { MAX_VALUES = 8192 };
typedef struct Values {
    int n;
    double items[MAX_VALUES];
} Values;

static void append(Values *values, const Tensor *tensor) {
    int64_t count = tensor_count(tensor);
    assert_true(values->n + count <= MAX_VALUES);
    tensor_read(tensor, values->items + values->n);
    values->n += (int)count;
}

/* Memory of a gradient that counts as zeros is not to be read. */
static void make_blank(Tensor *grad) {
    memset(grad->elements, 0xff, tensor_bytes(grad));
    grad->blank = true;
}

/* Outputs of an op's example, then the gradients of its inputs, which are zeros before, or blank. */
static void run_example(const OpInfo *op, const Device *device, DType dtype, int variant, bool blank, Values *values) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device, dtype, 0);
    OpExample example = {.tape = tape, .arena = arena, .seed = 11, .dtype = dtype, .variant = variant};
    values->n = 0;
    op->example(&example);
    assert_int_equal(tape_status(tape), ST_OK);
    for (int i = 0; i < example.n_inputs; i++)
        if (blank && example.inputs[i]->needs_grad) make_blank(example.inputs[i]->grad);
    for (int o = 0; o < example.n_outputs; o++) {
        double seeds[MAX_VALUES];
        append(values, example.outputs[o]);
        for (int64_t i = 0; i < tensor_count(example.outputs[o]); i++)
            seeds[i] = (double)bf16_to_float(float_to_bf16((float)rng_normal(rng_key(3, RNG_TEST, (uint64_t)o), (uint64_t)i)));
        tensor_seed_grad(tape, example.outputs[o], seeds);
    }
    assert_int_equal(tape_backward(tape), ST_OK);
    for (int i = 0; i < example.n_inputs; i++) {
        if (!example.inputs[i]->needs_grad) continue;
        if (example.inputs[i]->grad->blank) device->fill(example.inputs[i]->grad, 0);
        append(values, example.inputs[i]->grad);
    }
    tape_free(tape);
    arena_free(arena);
}

/* Values are about 1 in size. f32: sums of at most 60 products. bf16: 8 bits of mantissa through at most three roundings. */
static void devices_agree(DType dtype, double tolerance) {
    static Values fast, plain;
    for (int i = 0; i < n_op_infos; i++)
        for (int variant = 0; variant < *op_infos[i].variants; variant++) {
            run_example(&op_infos[i], device_cpu(), dtype, variant, false, &fast);
            run_example(&op_infos[i], device_reference(), dtype, variant, false, &plain);
            assert_int_equal(fast.n, plain.n);
            for (int j = 0; j < fast.n; j++) {
                double allowed = tolerance * fmax(1, fabs(plain.items[j]));
                if (!(fabs(fast.items[j] - plain.items[j]) <= allowed))
                    fail_msg("op %s, example %d, %s: value %d is %.9g, the reference has %.9g, allowed difference %.3g", op_infos[i].name, variant,
                             dtype_name(dtype), j, fast.items[j], plain.items[j], allowed);
            }
        }
}

TEST(cpu_matches_reference_f32) { devices_agree(DT_F32, 5e-6); }
TEST(cpu_matches_reference_bf16) { devices_agree(DT_BF16, 3e-2); }

TEST(blank_gradients_are_written) {
    static Values zeros, blank;
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F64};
    for (int d = 0; d < (int)COUNT_OF(dtypes) - ONE_SET; d++) /* the reference has no threads */
        for (int i = 0; i < n_op_infos; i++)
            for (int variant = 0; variant < *op_infos[i].variants; variant++) {
                const Device *device = dtypes[d] == DT_F64 ? device_reference() : device_cpu();
                run_example(&op_infos[i], device, dtypes[d], variant, false, &zeros);
                run_example(&op_infos[i], device, dtypes[d], variant, true, &blank);
                assert_int_equal(zeros.n, blank.n);
                for (int j = 0; j < zeros.n; j++)
                    if (zeros.items[j] != blank.items[j])
                        fail_msg("op %s, example %d, %s: value %d is %.9g, and %.9g where the gradient was blank", op_infos[i].name, variant,
                                 dtype_name(dtypes[d]), j, zeros.items[j], blank.items[j]);
            }
}

/* ---- a small network of layers ---- */

enum { TOKENS = 40, WIDTH = 16, N_LAYERS = 3 };
typedef struct Net {
    Tensor *x, *norm[N_LAYERS], *weight[N_LAYERS];
} Net;
typedef struct NetLayer {
    const Net *net;
    int index;
} NetLayer;

static Tensor *trained(Arena *arena, const Device *device, uint64_t number, int n_dims, const int64_t *shape) {
    Tensor *tensor = tensor_new(arena, device, DT_F32, n_dims, shape);
    tensor->needs_grad = true;
    tensor->grad = tensor_new(arena, device, DT_F32, n_dims, shape);
    for (int64_t i = 0; i < tensor_count(tensor); i++) {
        tensor_set(tensor, i, 0.3 * rng_normal(rng_key(5, RNG_TEST, number), (uint64_t)i));
        tensor_set(tensor->grad, i, 0);
    }
    return tensor;
}

static Net net_new(Arena *arena, const Device *device) {
    Net net;
    net.x = trained(arena, device, 0, 2, (int64_t[]){TOKENS, WIDTH});
    for (int i = 0; i < N_LAYERS; i++) {
        net.norm[i] = trained(arena, device, 1 + 2 * (uint64_t)i, 1, (int64_t[]){WIDTH});
        net.weight[i] = trained(arena, device, 2 + 2 * (uint64_t)i, 2, (int64_t[]){WIDTH, WIDTH});
    }
    return net;
}

static Tensor *net_layer(Tape *tape, Tensor *x, void *context) {
    const NetLayer *layer = context;
    Tensor *h = op_rms_norm(tape, x, layer->net->norm[layer->index], 1e-5, NULL);
    h = op_linear(tape, h, layer->net->weight[layer->index], NULL, NULL, NULL);
    h = op_activation(tape, ACT_SILU, h, NULL);
    return op_add(tape, x, h, 1);
}

static void net_run(Tape *tape, const Net *net, Values *values) {
    NetLayer layers[N_LAYERS];
    Tensor *x = net->x;
    for (int i = 0; i < N_LAYERS; i++) {
        layers[i] = (NetLayer){net, i};
        x = op_layer(tape, net_layer, x, &layers[i]);
    }
    double seeds[TOKENS * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++) seeds[i] = sin(i);
    if (values) append(values, x);
    tensor_seed_grad(tape, x, seeds);
    assert_int_equal(tape_backward(tape), ST_OK);
    if (!values) return;
    append(values, net->x->grad);
    for (int i = 0; i < N_LAYERS; i++) {
        append(values, net->norm[i]->grad);
        append(values, net->weight[i]->grad);
    }
}

static void run_net(Checkpointing checkpointing, Values *values, size_t *peak) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    tape_checkpoint(tape, checkpointing);
    Net net = net_new(arena, device_cpu());
    net_run(tape, &net, values);
    *peak = tape_peak_bytes(tape);
    tape_free(tape);
    arena_free(arena);
}

TEST(checkpointed_layers_give_the_same_bits_in_less_memory) {
    static Values values[CHECKPOINT_LAYER + 1];
    size_t peaks[CHECKPOINT_LAYER + 1];
    for (Checkpointing kind = CHECKPOINT_NONE; kind <= CHECKPOINT_LAYER; kind++) {
        values[kind].n = 0;
        run_net(kind, &values[kind], &peaks[kind]);
        assert_int_equal(values[0].n, values[kind].n);
        for (int i = 0; i < values[0].n; i++)
            if (values[0].items[i] != values[kind].items[i])
                fail_msg("value %d: %.9g plainly, %.9g with checkpoints of kind %d", i, values[0].items[i], values[kind].items[i], kind);
        if (kind > CHECKPOINT_HEAD && peaks[kind] > peaks[kind - 1])
            fail_msg("kind %d takes %zu bytes, the one before %zu", kind, peaks[kind], peaks[kind - 1]); /* there is no head here */
    }
    assert_true(peaks[CHECKPOINT_LAYER] < peaks[CHECKPOINT_NONE]);
}

TEST(the_meta_device_knows_the_memory) {
    Arena *arena = arena_new(0);
    static Values values;
    values.n = 0;
    Net net = net_new(arena, device_cpu());
    Tape *real = tape_new(device_cpu(), DT_F32, 0), *meta = tape_new(device_meta(), DT_F32, 0);
    for (int i = 0; i < N_LAYERS; i++) make_blank(net.weight[i]->grad);
    net_run(meta, &net, NULL);
    assert_true(net.weight[0]->grad->blank); /* a plan writes nothing */
    net_run(real, &net, &values);
    assert_int_equal(tape_peak_bytes(meta), tape_peak_bytes(real));
    for (int i = 0; i < values.n; i++) assert_true(isfinite(values.items[i]));
    tape_free(real);
    tape_free(meta);
    arena_free(arena);
}

/* A head's gradient is added in the forward pass if those of the losses are known there; 600 rows are several blocks. */
TEST(known_gradients_of_divergences_change_no_bit) {
    enum { ROWS = 600 };
    static Values values[2];
    static double seeds[ROWS];
    int32_t rows[ROWS], targets[ROWS];
    for (int known = 0; known < 2; known++)
        for (int blank = 0; blank < 2; blank++) {
            const int64_t n = ROWS;
            Arena *arena = arena_new(0);
            Tape *tape = tape_new(device_cpu(), DT_F32, 0);
            Tensor *hidden = trained(arena, device_cpu(), 50, 2, (int64_t[]){ROWS, 4}),
                   *head = trained(arena, device_cpu(), 51, 2, (int64_t[]){11, 4}),
                   *teacher = trained(arena, device_cpu(), 52, 2, (int64_t[]){ROWS, 5}),
                   *other = trained(arena, device_cpu(), 53, 2, (int64_t[]){9, 5});
            for (int32_t i = 0; i < ROWS; i++) {
                rows[i] = ROWS - 1 - i;
                targets[i] = i % 9;
                seeds[i] = sin(i);
            }
            if (blank) make_blank(head->grad);
            const DivergenceArgs args = {.kind = DIVERGENCE_JSD,
                                         .temperature = 1.5,
                                         .alpha = 0.7,
                                         .beta = 0.4,
                                         .scaling = 1,
                                         .teacher_scaling = 1,
                                         .upstream = known ? seeds : NULL};
            Divergences d = op_token_divergence(tape, hidden, head, teacher, other, tensor_view(arena, device_cpu(), DT_I32, 1, &n, rows),
                                                tensor_view(arena, device_cpu(), DT_I32, 1, &n, targets), &args);
            append(&values[known], d.loss);
            if (!known) tensor_seed_grad(tape, d.loss, seeds);
            check_ok(tape_backward(tape));
            append(&values[known], hidden->grad);
            append(&values[known], head->grad);
            tape_free(tape);
            arena_free(arena);
        }
    assert_int_equal(values[0].n, values[1].n);
    for (int i = 0; i < values[0].n; i++)
        if (values[0].items[i] != values[1].items[i]) fail_msg("value %d is %.9g, known %.9g", i, values[0].items[i], values[1].items[i]);
}

TEST(nothing_below_the_first_trained_parameter) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Net net = net_new(arena, device_cpu());
    net.x->needs_grad = false;
    net.norm[0]->needs_grad = net.weight[0]->needs_grad = false;
    NetLayer first = {&net, 0}, second = {&net, 1};
    Tensor *x = op_layer(tape, net_layer, net.x, &first), *y = op_layer(tape, net_layer, x, &second);
    assert_false(x->needs_grad);
    assert_true(y->needs_grad);
    double seeds[TOKENS * WIDTH] = {1};
    tensor_seed_grad(tape, y, seeds);
    assert_int_equal(tape_backward(tape), ST_OK);
    assert_null(x->grad);
    assert_true(tensor_get(net.weight[1]->grad, 0) != 0);
    tape_free(tape);
    arena_free(arena);
}

/* ---- the watch ---- */

static void count_ready(void *context, Tape *tape, Tensor *tensor) {
    (void)tape, (void)tensor;
    ++*(int *)context;
}

static void no_poll(void *context) { (void)context; }

/* A pass that records nothing, before the one that is learned from, adds to no gradient. */
TEST(gradients_are_ready_once) {
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        Arena *arena = arena_new(0);
        Tape *tape = tape_new(device_cpu(), DT_F32, 0);
        Net net = net_new(arena, device_cpu());
        NetLayer first = {&net, 0}, second = {&net, 1};
        double seeds[TOKENS * WIDTH] = {1};
        int ready = 0;
        net.x->needs_grad = false;
        tape_checkpoint(tape, checkpointed ? CHECKPOINT_LAYER : CHECKPOINT_NONE);
        tape_watch(tape, &(TapeWatch){&ready, count_ready, no_poll});
        tape_record(tape, false);
        op_layer(tape, net_layer, op_layer(tape, net_layer, net.x, &first), &second);
        tape_record(tape, true);
        Tensor *y = op_layer(tape, net_layer, op_layer(tape, net_layer, net.x, &first), &second);
        assert_int_equal(ready, 0);
        tensor_seed_grad(tape, y, seeds);
        check_ok(tape_backward(tape));
        assert_int_equal(ready, 4); /* two norms, two weights */
        tape_free(tape);
        arena_free(arena);
    }
}

/* Layers of one input at once have the bits of one after the other, whatever they are made of. */
TEST(layers_at_once_have_the_same_bits) {
    static const DType dtypes[] = {DT_F32, DT_BF16};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (int64_t rows = 1; rows <= 40; rows += 39) {
            Arena *arena = arena_new(0);
            Tape *tape = tape_new(device_cpu(), dtypes[d], 0);
            tape_record(tape, false);
            Tensor *x = tape_tensor(tape, dtypes[d], 2, (int64_t[]){rows, 64}), *at_once[LINEARS_MOST];
            for (int64_t i = 0; i < tensor_count(x); i++) tensor_set(x, i, cos((double)i));
            LoraBranch branches[2] = {{.scale = 2}, {.scale = 0.5, .dropout = 0.3, .key = rng_key(1, RNG_DROPOUT, 2), .first_draw = 7}};
            for (int i = 0; i < 2; i++) {
                branches[i].a = trained(arena, device_cpu(), 30 + (uint64_t)i, 2, (int64_t[]){8, 64});
                branches[i].b = trained(arena, device_cpu(), 40 + (uint64_t)i, 2, (int64_t[]){i ? 32 : 96, 8});
            }
            LinearArgs layers[LINEARS_MOST] = {
                {trained(arena, device_cpu(), 20, 2, (int64_t[]){96, 64}), trained(arena, device_cpu(), 21, 1, (int64_t[]){96}), &branches[0]},
                {trained(arena, device_cpu(), 22, 2, (int64_t[]){32, 64}), NULL, &branches[1]},
                {trained(arena, device_cpu(), 23, 2, (int64_t[]){64, 48}), trained(arena, device_cpu(), 24, 1, (int64_t[]){48}), NULL}};
            layers[2].weight->in_out = true;
            op_linears(tape, x, layers, LINEARS_MOST, at_once);
            for (int i = 0; i < LINEARS_MOST; i++) {
                Tensor *alone = op_linear(tape, x, layers[i].weight, layers[i].bias, layers[i].lora, NULL);
                assert_non_null(alone);
                assert_non_null(at_once[i]);
                assert_memory_equal(at_once[i]->elements, alone->elements, tensor_bytes(alone));
            }
            layers[1].weight = trained(arena, device_cpu(), 25, 2, (int64_t[]){32, 63});
            op_linears(tape, x, layers, LINEARS_MOST, at_once);
            assert_int_equal(tape_status(tape), ST_INPUT);
            for (int i = 0; i < LINEARS_MOST; i++) assert_null(at_once[i]);
            tape_free(tape);
            arena_free(arena);
        }
}

/* Layers with one input: trained, (in, out), with a branch, with its dropout; as one node or one node each. Gradients of all requested tensors. */
enum { LAYER_KINDS = 12, LAYER_TENSORS = 1 + 4 * LINEARS_MOST };
static int run_layers(Arena *arena, int kind, DType dtype, bool at_once, double *grads[LAYER_TENSORS], int64_t sizes[LAYER_TENSORS]) {
    static const int64_t rows[] = {1, 40, 130, 700}, ins[] = {96, 100, 576}, widths[] = {288, 32, 80, 1200, 7};
    int64_t n_rows = rows[kind % 4], in = ins[kind % 3];
    Tape *tape = tape_new(device_cpu(), dtype, 0);
    Tensor *x = trained(arena, device_cpu(), 60, 2, (int64_t[]){n_rows, in}), *norm = trained(arena, device_cpu(), 61, 1, &in), *y[LINEARS_MOST],
           *seen[LAYER_TENSORS] = {x};
    LinearArgs layers[LINEARS_MOST];
    LoraBranch branches[LINEARS_MOST];
    int n = 1, n_layers = 2 + kind % 2;
    for (int i = 0; i < n_layers; i++) {
        int64_t out = widths[(kind + 2 * i) % 5];
        bool in_out = (kind / 2 + i) % 3 == 2, lora = (kind + i) % 3 == 0;
        Tensor *weight = trained(arena, device_cpu(), 70 + (uint64_t)i, 2, in_out ? (int64_t[]){in, out} : (int64_t[]){out, in}),
               *bias = i ? NULL : trained(arena, device_cpu(), 80, 1, &out);
        weight->in_out = in_out;
        weight->needs_grad = kind % 4 != 3 || i == 1;
        if (kind % 2) make_blank(weight->grad);
        if (weight->needs_grad) seen[n++] = weight;
        if (bias) seen[n++] = bias;
        if (lora) {
            branches[i] = (LoraBranch){.a = trained(arena, device_cpu(), 90 + (uint64_t)i, 2, (int64_t[]){8, in}),
                                       .b = trained(arena, device_cpu(), 95 + (uint64_t)i, 2, (int64_t[]){out, 8}),
                                       .scale = 2,
                                       .dropout = kind % 4 == 1 ? 0.2 : 0,
                                       .key = rng_key(1, RNG_DROPOUT, (uint64_t)i)};
            seen[n++] = branches[i].a, seen[n++] = branches[i].b;
        }
        layers[i] = (LinearArgs){weight, bias, lora ? &branches[i] : NULL};
    }
    Tensor *input = op_rms_norm(tape, x, norm, 1e-6, NULL);
    if (at_once)
        op_linears(tape, input, layers, n_layers, y);
    else
        for (int i = 0; i < n_layers; i++) y[i] = op_linear(tape, input, layers[i].weight, layers[i].bias, layers[i].lora, NULL);
    for (int i = 0; i < n_layers; i++) {
        double *seeds = arena_alloc(arena, (size_t)tensor_count(y[i]) * sizeof *seeds);
        for (int64_t j = 0; j < tensor_count(y[i]); j++)
            seeds[j] = (double)bf16_to_float(float_to_bf16((float)rng_normal(rng_key(9, RNG_TEST, (uint64_t)i), (uint64_t)j)));
        if (kind % 5 != i) tensor_seed_grad(tape, y[i], seeds); /* else nothing comes back to it */
    }
    assert_int_equal(tape_backward(tape), ST_OK);
    for (int i = 0; i < n; i++) {
        sizes[i] = tensor_count(seen[i]);
        grads[i] = arena_zero(arena, (size_t)sizes[i] * sizeof(double));
        if (!seen[i]->grad->blank) tensor_read(seen[i]->grad, grads[i]);
        for (int64_t j = 0; at_once && j < sizes[i]; j++) assert_true(isfinite(grads[i][j]));
        grads[i][0] += seen[i]->grad->blank; /* so that a comparison sees it */
    }
    tape_free(tape);
    return n;
}

TEST(layers_at_once_have_the_same_gradients) {
    int threads = omp_get_max_threads();
    for (int kind = 0; kind < 2 * LAYER_KINDS; kind++) {
        Arena *arena = arena_new(0);
        double *alone[LAYER_TENSORS], *at_once[LAYER_TENSORS];
        int64_t sizes[LAYER_TENSORS];
        DType dtype = kind < LAYER_KINDS ? DT_F32 : DT_BF16;
        omp_set_num_threads(1);
        int n = run_layers(arena, kind % LAYER_KINDS, dtype, false, alone, sizes);
        for (int t = 1; t <= 5; t += ALL_OR_FEW(2, 4)) {
            omp_set_num_threads(t);
            assert_int_equal(run_layers(arena, kind % LAYER_KINDS, dtype, true, at_once, sizes), n);
            for (int i = 0; i < n; i++) assert_memory_equal(at_once[i], alone[i], (size_t)sizes[i] * sizeof(double));
        }
        arena_free(arena);
    }
    omp_set_num_threads(threads);
}

/* A residual stream stays in one place; not where somebody else goes back to its values, the norm's weight has a zero, x is no op's result, or
 * nothing is recorded. */
TEST(residual_streams_stay_in_place) {
    enum { FROZEN, TRAINED, READ_TWICE, ZERO, LEAF, UNRECORDED, KINDS };
    for (int kind = 0; kind < KINDS; kind++) {
        Arena *arena = arena_new(0);
        Tape *tape = tape_new(device_cpu(), DT_F32, 0);
        Net net = net_new(arena, device_cpu());
        net.norm[0]->needs_grad = kind == TRAINED;
        if (kind == ZERO) tensor_set(net.norm[0], 3, 0);
        tape_record(tape, kind != UNRECORDED);
        Tensor *x = kind == LEAF ? net.x : op_add(tape, net.x, net.x, 1);
        if (kind == READ_TWICE) op_linear(tape, x, net.weight[1], NULL, NULL, NULL);
        Tensor *y = op_linear(tape, op_rms_norm(tape, x, net.norm[0], 1e-5, NULL), net.weight[0], NULL, NULL, x);
        assert_int_equal(tape_status(tape), ST_OK);
        assert_int_equal(y->elements == x->elements, kind <= TRAINED);
        tape_free(tape);
        arena_free(arena);
    }
}

/* What a linear layer makes of an activation that is not kept has the bits of one that is, forward and back, and less memory at the most. */
TEST(activations_pass) {
    enum { ROWS = 300, IN = 96, OUT = 40 };
    for (int kind = 0; kind < 16; kind++) {
        DType dtype = kind & 1 ? DT_BF16 : DT_F32;
        bool gated = kind & 2, trained_weight = kind & 4, dropout = kind & 8;
        double *got[2][6];
        size_t peak[2];
        for (int passing = 0; passing < 2; passing++) {
            Arena *arena = arena_new(0);
            Tape *tape = tape_new(device_cpu(), dtype, 0);
            Tensor *seen[6] = {NULL,
                               trained(arena, device_cpu(), 1, 2, (int64_t[]){ROWS, IN}),
                               trained(arena, device_cpu(), 2, 2, (int64_t[]){ROWS, IN}),
                               trained(arena, device_cpu(), 3, 2, (int64_t[]){OUT, IN}),
                               trained(arena, device_cpu(), 4, 2, (int64_t[]){8, IN}),
                               trained(arena, device_cpu(), 5, 2, (int64_t[]){OUT, 8})};
            seen[3]->needs_grad = trained_weight;
            LoraBranch lora = {.scale = 2, .a = seen[4], .b = seen[5], .dropout = dropout ? 0.3 : 0, .key = rng_key(3, RNG_DROPOUT, 0)};
            Tensor *norm = trained(arena, device_cpu(), 6, 1, (int64_t[]){IN}); /* which makes them the dtype of products */
            Tensor *gate = op_rms_norm(tape, seen[1], norm, 1e-5, NULL), *up = gated ? op_rms_norm(tape, seen[2], norm, 1e-5, NULL) : NULL;
            Tensor *h = passing ? op_activation_passing(tape, ACT_SILU, gate, up) : op_activation(tape, ACT_SILU, gate, up);
            Tensor *y = seen[0] = op_linear(tape, h, seen[3], NULL, &lora, NULL);
            assert_true(!passing || !h->elements);
            for (int i = 0; i < 6; i++) got[passing][i] = calloc((size_t)ROWS * IN, sizeof(double));
            tensor_read(y, got[passing][0]);
            double *seeds = arena_alloc(arena, ROWS * OUT * sizeof *seeds);
            for (int64_t j = 0; j < ROWS * OUT; j++) seeds[j] = sin((double)j);
            tensor_seed_grad(tape, y, seeds);
            assert_int_equal(tape_backward(tape), ST_OK);
            peak[passing] = tape_peak_bytes(tape);
            for (int i = 1; i < 6; i++) tensor_read(seen[i]->grad, got[passing][i]);
            tape_free(tape);
            arena_free(arena);
        }
        for (int i = 0; i < 6; i++) {
            assert_memory_equal(got[1][i], got[0][i], sizeof(double) * ROWS * IN);
            assert_true(i != 4 || got[1][4][0] != 0);
            free(got[0][i]), free(got[1][i]);
        }
        assert_true(peak[1] <= peak[0]);
    }
}

TEST(failures_stick_to_the_tape) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Net net = net_new(arena, device_cpu());
    Tensor *wrong = trained(arena, device_cpu(), 9, 2, (int64_t[]){WIDTH, WIDTH + 1});
    Tensor *h = op_linear(tape, net.x, wrong, NULL, NULL, NULL);
    assert_null(h);
    assert_int_equal(tape_status(tape), ST_INPUT);
    assert_null(op_add(tape, net.x, op_rms_norm(tape, h, net.norm[0], 1e-5, NULL), 1));
    assert_int_equal(tape_backward(tape), ST_INPUT);
    tape_reset(tape);
    assert_non_null(op_add(tape, net.x, net.x, 1));
    tape_free(tape);

    Tape *small = tape_new(device_cpu(), DT_F32, 256);
    assert_null(op_add(small, net.x, net.x, 1));
    assert_int_equal(tape_status(small), ST_RESOURCE);
    tape_free(small);
    arena_free(arena);
}

#ifndef SANITIZED
/* Sums that must not be rounded; where there is no memory for them the step is given up, not the program. */
TEST(the_reference_without_memory_says_so) {
    assert_null(ref_zeros((int64_t)1 << 56));
    check_status(memory_check(ST_OK), ST_RESOURCE);
    check_text("out of memory");
    memory_clear_failure();
    check_ok(memory_check(ST_OK));
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(cpu_matches_reference_f32),
        cmocka_unit_test(cpu_matches_reference_bf16),
        cmocka_unit_test(blank_gradients_are_written),
        cmocka_unit_test(checkpointed_layers_give_the_same_bits_in_less_memory),
        cmocka_unit_test(the_meta_device_knows_the_memory),
        cmocka_unit_test(known_gradients_of_divergences_change_no_bit),
        cmocka_unit_test(nothing_below_the_first_trained_parameter),
        cmocka_unit_test(gradients_are_ready_once),
        cmocka_unit_test(layers_at_once_have_the_same_bits),
        cmocka_unit_test(layers_at_once_have_the_same_gradients),
        cmocka_unit_test(residual_streams_stay_in_place),
        cmocka_unit_test(activations_pass),
        cmocka_unit_test(failures_stick_to_the_tape),
#ifndef SANITIZED
        cmocka_unit_test(the_reference_without_memory_says_so),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
