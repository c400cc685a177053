/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for jansson. Its lexer does not check whether a byte of a string could be stored: without memory it drops characters and writes beyond its
 * buffer. So before a text is parsed, as much memory is reserved as the text can need at most. malloc still provides the blocks; from the first one
 * that it refuses on, they come from the reserve. Such a parse completes, and its result is discarded as out of memory. JSON that is built piece by
 * piece gets its last blocks from a small pool, because callers do not check each member that they set. */
#include "lib/base/json.h"
#include "lib/base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNED = 16,
    /* Upper bounds of what jansson allocates, in bytes: its structs, the first buckets of an object or slots of an array, their growth by
     * doubling. */
    PER_PARSE = 1024,
    PER_OBJECT = 384,
    PER_ARRAY = 192,
    PER_MEMBER = 224, /* of an object or array: its slots, its buckets, and a value that is a number or a word */
    PER_STRING = 192, /* a value or a key, in addition to its bytes */
    POOL = 256 << 10
};

typedef struct Reserve {
    char *bytes;
    size_t size, used;
} Reserve;
static _Thread_local Reserve reserve; /* set while this thread parses */
static _Alignas(ALIGNED) char pool[POOL];
static atomic_size_t pool_used;

static bool within(const void *block, const char *bytes, size_t size) {
    return bytes && (uintptr_t)block >= (uintptr_t)bytes && (uintptr_t)block - (uintptr_t)bytes < size;
}

static size_t aligned(size_t size) { return size <= SIZE_MAX - ALIGNED ? (size + ALIGNED - 1) / ALIGNED * ALIGNED : SIZE_MAX; }

static void *block_of_reserve(size_t size) {
    if (aligned(size) > reserve.size - reserve.used) return NULL;
    char *block = reserve.bytes + reserve.used;
    reserve.used += aligned(size);
    return block;
}

static void *block_of_pool(size_t size) {
    if (aligned(size) > POOL) return NULL;
    size_t at = atomic_fetch_add(&pool_used, aligned(size));
    if (at <= POOL && aligned(size) <= POOL - at) return pool + at;
    atomic_fetch_sub(&pool_used, aligned(size));
    return NULL;
}

static void *block_new(size_t size) {
    void *block = reserve.used == 0 ? malloc(MAX(size, (size_t)1)) : NULL;
    if (block) return block;
    memory_ran_out(size);
    return reserve.bytes ? block_of_reserve(size) : block_of_pool(size);
}

static void block_free(void *block) {
    if (!within(block, reserve.bytes, reserve.size) && !within(block, pool, POOL)) free(block);
}

/* Runs before any JSON value is made in any thread. */
__attribute__((constructor)) static void serve_jansson(void) { json_set_alloc_funcs(block_new, block_free); }

/* ---- the memory that a text can need ---- */

/* Length of the string that begins at `text`, with its quotes; `len` when it does not end. */
static size_t string_length(const char *text, size_t len) {
    for (size_t at = 1; at < len; at++) {
        const char *end = memchr(text + at, '"', len - at);
        if (!end) return len;
        at = (size_t)(end - text);
        size_t slashes = 0;
        while (text[at - 1 - slashes] == '\\') slashes++;
        if (slashes % 2 == 0) return at + 1;
    }
    return len;
}

/* An upper bound for the text, or with `first` for the first object or list in it, after which parsing stops. */
static size_t bound(const char *text, size_t len, bool first) {
    size_t bytes = PER_PARSE, longest = 0, token = 0, depth = 0, n;
    for (size_t at = 0; at < len; at += n) {
        n = 1;
        switch (text[at]) {
        case '{': bytes += PER_OBJECT + PER_MEMBER, token = 0, depth++; break;
        case '[': bytes += PER_ARRAY + PER_MEMBER, token = 0, depth++; break;
        case '}':
        case ']':
            token = 0, depth -= depth > 0;
            if (first && depth == 0) return bytes + 4 * longest;
            break;
        case ',':
        case ':': bytes += PER_MEMBER, token = 0; break;
        case '"':
            n = string_length(text + at, len - at);
            bytes += PER_STRING + 2 * n;
            longest = MAX(longest, n);
            token = 0;
            break;
        default: longest = MAX(longest, ++token);
        }
    }
    return bytes + 4 * longest; /* the lexer's buffer, which doubles */
}

size_t json_memory_bound(const char *text, size_t len) { return bound(text, len, false); }

/* ---- parsing ---- */

static void say_out_of_memory(json_error_t *error) {
    if (!error) return;
    *error = (json_error_t){.line = 1};
    snprintf(error->text, sizeof error->text - 1, "out of memory");
    error->text[sizeof error->text - 1] = json_error_out_of_memory; /* where json_error_code looks */
}

json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *error) {
    size_t size = bound(text, len, flags & JSON_DISABLE_EOF_CHECK);
    char *bytes = malloc(size);
    if (!bytes) {
        memory_ran_out(size);
        say_out_of_memory(error);
        return NULL;
    }
    reserve = (Reserve){bytes, size, 0};
    json_t *json = json_loadb(text, len, flags, error);
    if (reserve.used > 0) {
        json_decref(json);
        json = NULL;
        say_out_of_memory(error);
    }
    reserve = (Reserve){0};
    free(bytes);
    return json;
}

char *json_text(const json_t *json, size_t flags) {
    char *text = json_dumps(json, flags);
    if (text && !within(text, pool, POOL)) return text;
    if (json) memory_ran_out(1);
    return NULL;
}
