/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN's matrix product through its C interface, versions 2 and 3.
 *
 * Primitives are created and run for a single thread: product_thread_begin tells the OpenMP runtime so, and oneDNN asks the runtime. Their scratch
 * memory is ours, one piece for each thread, so that threads may run the same primitive at once. */
#include "lib/base/memory.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

#if HAVE_ONEDNN
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct OnednnTile {
    TileShape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, scratchpad;
    size_t b_bytes, scratchpad_bytes;
    OnednnTile *next;
};

enum { BUCKETS = 256, MOST_TILES = 2048, MOST_THREADS = 1024 };
static dnnl_engine_t engine;
static dnnl_stream_t streams[MOST_THREADS];
static OnednnTile *buckets[BUCKETS];
static size_t n_tiles;

/* Whether a call did what it should. Without memory it did not: the product is then zeros, and the step that it is for is given up at its end
 * (memory_check). */
static bool done(dnnl_status_t status) {
    ASSERT(status == dnnl_success || status == dnnl_out_of_memory, "oneDNN returned status %d", (int)status);
    if (status != dnnl_success) memory_ran_out(1);
    return status == dnnl_success;
}

/* ---- differences between the versions: descriptors are values in 2, handles in 3 ---- */

#if DNNL_VERSION_MAJOR >= 3
#define DESC(desc) (desc)
typedef const_dnnl_memory_desc_t DescView;
static bool desc_strided(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides) {
    return done(dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides));
}
static bool desc_any(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type) {
    return done(dnnl_memory_desc_create_with_tag(desc, 2, dims, type, dnnl_format_tag_any));
}
static bool desc_copy(dnnl_memory_desc_t *desc, DescView from) { return done(dnnl_memory_desc_clone(desc, from)); }
static void desc_release(dnnl_memory_desc_t *desc) { dnnl_memory_desc_destroy(*desc); }
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *desc, DescView a, DescView b, DescView c, const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(desc, engine, a, b, NULL, c, attributes);
}
#else
#define DESC(desc) (&(desc))
typedef const dnnl_memory_desc_t *DescView;
static bool desc_strided(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type, const dnnl_dims_t strides) {
    return done(dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides));
}
static bool desc_any(dnnl_memory_desc_t *desc, const dnnl_dims_t dims, dnnl_data_type_t type) {
    return done(dnnl_memory_desc_init_by_tag(desc, 2, dims, type, dnnl_format_tag_any));
}
static bool desc_copy(dnnl_memory_desc_t *desc, DescView from) {
    *desc = *from;
    return true;
}
static void desc_release(dnnl_memory_desc_t *desc) { (void)desc; }
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *desc, DescView a, DescView b, DescView c, const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, NULL, c);
    return !done(status) ? status : dnnl_primitive_desc_create(desc, &operation, attributes, engine, NULL);
}
#endif

/* ---- tiles ---- */

static dnnl_data_type_t type_of(DType dtype) { return dtype == DT_BF16 ? dnnl_bf16 : dnnl_f32; }

static bool desc_plain(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, DType dtype, int64_t ld, bool transposed) {
    return desc_strided(desc, (dnnl_dims_t){rows, cols}, type_of(dtype), (dnnl_dims_t){transposed ? 1 : ld, transposed ? ld : 1});
}

static bool describe_b(dnnl_memory_desc_t *b, const TileShape *shape, const dnnl_memory_desc_t *packed) {
    if (packed) return desc_copy(b, DESC(*packed));
    if (shape->packed) return desc_any(b, (dnnl_dims_t){shape->k, shape->n}, type_of(shape->dtype));
    return desc_plain(b, shape->k, shape->n, shape->dtype, shape->ldb, shape->transpose_b);
}

/* Whether the library has a way, and memory for it. */
static bool find_way(const TileShape *shape, dnnl_status_t status, const dnnl_primitive_desc_t *desc) {
    const char *way = "";
    if (status == dnnl_out_of_memory) memory_ran_out(1);
    return status == dnnl_success && done(dnnl_primitive_desc_query(*desc, dnnl_query_impl_info_str, 0, (void *)&way)) &&
           !(shape->packed && text_starts_with(way, "ref"));
}

static bool tile_take(OnednnTile *tile, dnnl_primitive_desc_t desc, DescView a, DescView c) {
    DescView b = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
             scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    if (!desc_copy(&tile->a, a) || !desc_copy(&tile->b, b) || !desc_copy(&tile->c, c) || !desc_copy(&tile->scratchpad, scratchpad)) return false;
    tile->b_bytes = dnnl_memory_desc_get_size(b);
    tile->scratchpad_bytes = dnnl_memory_desc_get_size(scratchpad);
    return done(dnnl_primitive_create(&tile->primitive, desc));
}

static bool tile_create(OnednnTile *tile, const dnnl_memory_desc_t *packed) {
    const TileShape *shape = &tile->shape;
    dnnl_memory_desc_t a = {0}, b = {0}, c = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    bool made = desc_plain(&a, shape->m, shape->k, shape->dtype, shape->lda, shape->transpose_a) && describe_b(&b, shape, packed) &&
                desc_plain(&c, shape->m, shape->n, DT_F32, shape->ldc, false) && done(dnnl_primitive_attr_create(&attributes)) &&
                done(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    made = made && find_way(shape, matmul_desc(&desc, DESC(a), DESC(b), DESC(c), attributes), &desc) && tile_take(tile, desc, DESC(a), DESC(c));
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    desc_release(&a);
    desc_release(&b);
    desc_release(&c);
    return made;
}

static bool shape_equal(const TileShape *x, const TileShape *y) {
    return x->dtype == y->dtype && x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->packed == y->packed && x->m == y->m &&
           x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc;
}

static size_t shape_bucket(const TileShape *shape) {
    uint64_t parts[] = {(uint64_t)shape->m, (uint64_t)shape->n, (uint64_t)shape->k, (uint64_t)shape->lda, (uint64_t)shape->ldb, (uint64_t)shape->ldc},
             hash = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) hash = (hash ^ parts[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 56) % BUCKETS;
}

/* `packed`: the layout that b must have, NULL = given by the shape or chosen by the library. */
static const OnednnTile *tile_find(const TileShape *shape, const dnnl_memory_desc_t *packed) {
    OnednnTile **bucket = &buckets[shape_bucket(shape)];
    for (OnednnTile *tile = *bucket; tile; tile = tile->next)
        if (shape_equal(&tile->shape, shape)) return tile->primitive ? tile : NULL;
    OnednnTile *tile = calloc(1, sizeof *tile);
    if (!tile) {
        memory_ran_out(sizeof *tile);
        return NULL; /* as if the library had no implementation */
    }
    if (!engine && !done(dnnl_engine_create(&engine, dnnl_cpu, 0))) {
        free(tile);
        return NULL;
    }
    tile->shape = *shape;
    tile->next = *bucket;
    *bucket = tile;
    n_tiles++;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* the library chooses the implementation for this number of threads */
    bool made = tile_create(tile, packed);
    omp_set_num_threads(threads);
    return made ? tile : NULL;
}

/* The tile that chooses the layout for all tiles of a packed weight. */
static const OnednnTile *tile_packer(DType dtype, int64_t rows, int64_t n, int64_t k) {
    return tile_find(&(TileShape){.dtype = dtype, .packed = true, .m = rows, .n = n, .k = k, .lda = k, .ldc = n}, NULL);
}

bool onednn_is_fast(DType dtype) {
    enum { ROWS = 32, SIDE = 64 };
    return tile_packer(dtype, ROWS, SIDE, SIDE) != NULL;
}

const OnednnTile *onednn_tile(const TileShape *shape, int64_t packed_rows) {
    if (!shape->packed) return tile_find(shape, NULL);
    const OnednnTile *packer = tile_packer(shape->dtype, packed_rows, shape->n, shape->k);
    ASSERT(packer || memory_is_short(), "no packed product of %lld rows", (long long)packed_rows);
    return packer ? tile_find(shape, &packer->b) : NULL;
}

static void tile_forget(OnednnTile *tile) {
    if (tile->primitive) {
        dnnl_primitive_destroy(tile->primitive);
        desc_release(&tile->a);
        desc_release(&tile->b);
        desc_release(&tile->c);
        desc_release(&tile->scratchpad);
    }
    free(tile);
}

void onednn_evict(void) {
    if (n_tiles < MOST_TILES) return;
    for (size_t i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            OnednnTile *next = buckets[i]->next;
            tile_forget(buckets[i]);
            buckets[i] = next;
        }
    n_tiles = 0;
}

static dnnl_stream_t stream_of_thread(void) {
    int thread = omp_get_thread_num();
    ASSERT(thread < MOST_THREADS, "thread %d, at most %d", thread, MOST_THREADS);
    if (!streams[thread] && !done(dnnl_stream_create(&streams[thread], engine, dnnl_stream_default_flags))) streams[thread] = NULL;
    return streams[thread];
}

typedef struct Place {
    int argument;
    DescView desc;
    const void *data;
} Place;

/* False without memory. */
static bool run_primitive(dnnl_primitive_t primitive, const Place *places, int n) {
    dnnl_exec_arg_t arguments[4];
    dnnl_stream_t stream = stream_of_thread();
    int made = 0;
    for (; stream && made < n; made++) {
        arguments[made].arg = places[made].argument;
        if (!done(dnnl_memory_create(&arguments[made].memory, places[made].desc, engine, (void *)(uintptr_t)places[made].data))) break;
    }
    bool ran = stream && made == n && done(dnnl_primitive_execute(primitive, stream, n, arguments)) && done(dnnl_stream_wait(stream));
    while (made > 0) dnnl_memory_destroy(arguments[--made].memory);
    return ran;
}

void onednn_run(const OnednnTile *tile, const void *a, const void *b, float *c) {
    void *scratchpad = cpu_scratch(CPU_LIBRARY, tile->scratchpad_bytes);
    if (cpu_planning()) return;
    Place places[] = {{DNNL_ARG_SRC, DESC(tile->a), a},
                      {DNNL_ARG_WEIGHTS, DESC(tile->b), b},
                      {DNNL_ARG_DST, DESC(tile->c), c},
                      {DNNL_ARG_SCRATCHPAD, DESC(tile->scratchpad), scratchpad}};
    if (!run_primitive(tile->primitive, places, COUNT_OF(places))) memset(c, 0, (size_t)(tile->shape.m * tile->shape.n) * sizeof *c);
}

size_t onednn_packed_bytes(DType dtype, int64_t rows, int64_t n, int64_t k) {
    const OnednnTile *packer = tile_packer(dtype, rows, n, k);
    if (!packer) return 0;
    for (int transposed = 0; transposed < 2; transposed++) {
        dnnl_memory_desc_t plain = {0};
        bool same = desc_plain(&plain, k, n, dtype, transposed ? k : n, transposed) && dnnl_memory_desc_equal(DESC(plain), DESC(packer->b));
        desc_release(&plain);
        if (same) return 0;
    }
    return packer->b_bytes;
}

void onednn_pack(DType dtype, int64_t rows, int64_t n, int64_t k, const void *b, int64_t ldb, bool transpose_b, void *packed) {
    const OnednnTile *packer = tile_packer(dtype, rows, n, k);
    dnnl_memory_desc_t plain = {0};
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t reorder = NULL;
    bool made = packer && desc_plain(&plain, k, n, dtype, ldb, transpose_b) &&
                done(dnnl_reorder_primitive_desc_create(&desc, DESC(plain), engine, DESC(packer->b), engine, NULL)) &&
                done(dnnl_primitive_create(&reorder, desc));
    Place places[2];
    if (made) places[0] = (Place){DNNL_ARG_FROM, DESC(plain), b}, places[1] = (Place){DNNL_ARG_TO, DESC(packer->b), packed};
    if (made) run_primitive(reorder, places, COUNT_OF(places));
    if (reorder) dnnl_primitive_destroy(reorder);
    if (desc) dnnl_primitive_desc_destroy(desc);
    desc_release(&plain);
}

const char *onednn_version(void) {
    static char text[32];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "onednn %d.%d.%d", version->major, version->minor, version->patch);
    return text;
}
#else
typedef int host_gemm_onednn_is_empty; /* ISO C requires a declaration in every file */
#endif
