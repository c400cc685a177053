/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs of Parquet's pages, each from a system library. */
#include "data/containers/parquet.h"

#include <stdlib.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

/* Codecs by number, as in parquet.thrift. */
static const char *const codecs[] = {"uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"};
enum { UNCOMPRESSED, SNAPPY, GZIP, ZSTD = 6 };

const char *pq_codec_name(int codec) { return codec >= 0 && (size_t)codec < COUNT_OF(codecs) ? codecs[codec] : "an unknown one"; }

/* Whether `len` compressed bytes can become `size` bytes at all; checked before memory is allocated for them. */
static bool plausible(int codec, const uint8_t *bytes, size_t len, size_t size) {
    size_t said;
    switch (codec) {
    case SNAPPY: return snappy_uncompressed_length((const char *)bytes, len, &said) == SNAPPY_OK && said == size;
    case GZIP: return size / 1100 <= len; /* deflate compresses at most 1032 bytes into one */
    case ZSTD: {
        unsigned long long content = ZSTD_getFrameContentSize(bytes, len);
        return content == size || content == ZSTD_CONTENTSIZE_UNKNOWN;
    }
    default: return true;
    }
}

static Status parquet_unpack_reserve(PqBuffer *buffer, size_t size) {
    if (size <= buffer->cap) return ST_OK;
    free(buffer->data);
    buffer->data = malloc(size);
    buffer->cap = buffer->data ? size : 0;
    return buffer->data ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a page of %zu bytes", size);
}

static bool inflate_page(const uint8_t *bytes, size_t len, uint8_t *out, size_t size) {
    z_stream zlib = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (unsigned)len, .next_out = out, .avail_out = (unsigned)size};
    if (inflateInit2(&zlib, MAX_WBITS + 32) != Z_OK) return false;
    int code = inflate(&zlib, Z_FINISH);
    inflateEnd(&zlib);
    return code == Z_STREAM_END && zlib.avail_out == 0;
}

Status pq_unpack(int codec, const uint8_t *bytes, size_t len, size_t size, PqBuffer *buffer, const char **fault) {
    *fault = NULL;
    if (codec != SNAPPY && codec != GZIP && codec != ZSTD) {
        *fault = "expected snappy, gzip, zstd or none";
        return ST_INPUT;
    }
    if (!plausible(codec, bytes, len, size)) {
        *fault = "the page's size is not that of its packed data";
        return ST_INPUT;
    }
    TRY(parquet_unpack_reserve(buffer, MAX(size, 1)));
    bool whole;
    if (codec == SNAPPY) {
        size_t got = size;
        whole = snappy_uncompress((const char *)bytes, len, (char *)buffer->data, &got) == SNAPPY_OK && got == size;
    } else if (codec == GZIP) {
        whole = inflate_page(bytes, len, buffer->data, size);
    } else {
        whole = ZSTD_decompress(buffer->data, size, bytes, len) == size;
    }
    if (whole) return ST_OK;
    *fault = "the page's packed data is damaged";
    return ST_INPUT;
}
