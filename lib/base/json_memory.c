/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for jansson. Its lexer does not look whether a byte of a string found room: without memory it drops characters, and writes beyond its
 * buffer. So a text is parsed only after as much was reserved as the whole of it can need. malloc still gives the blocks; the first one that it
 * refuses, and all after it, come out of the reserve. Such a parse ends in order, and what it made is given up as out of memory.
 * JSON that is built piece by piece gets its last blocks out of a small pool: nobody looks at each member that is set. */
#include "lib/base/json.h"
#include "lib/base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNED = 16,
    /* Upper bounds of what jansson takes, bytes: its structs, the first buckets of an object or slots of an array, their growth by doubling. */
    PER_PARSE = 1024,
    PER_OBJECT = 384,
    PER_ARRAY = 192,
    PER_MEMBER = 224, /* of an object or array: a number or a word as value, its slots, its buckets */
    PER_STRING = 192, /* as value or as key, beside its bytes */
    POOL = 256 << 10
};

typedef struct Reserve {
    char *bytes;
    size_t size, used;
} Reserve;
static _Thread_local Reserve reserve; /* while this thread parses */
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

/* Before anything is made, in any thread. */
__attribute__((constructor)) static void serve_jansson(void) { json_set_alloc_funcs(block_new, block_free); }

/* ---- what a text can need ---- */

/* Bytes of the string that begins at `text`, with its marks; all of them where it does not end. */
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

/* Of all of the text, or of the first object or list in it, behind which nothing is read. */
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
