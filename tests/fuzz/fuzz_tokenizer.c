/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as tokenizer.json: either a failure with a text, or a tokenizer whose streams equal its decoding. */
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void use(const Tokenizer *tokenizer) {
    static const char sample[] = "hello he<a>  12\xC3\xA9 \xE2\x96\x81! ab\n\n\xE4\xB8\x80";
    Ids ids = {0}, offsets = {0};
    Str whole = {0}, sum = {0};
    TextStream stream;
    if (tokenizer_encode_offsets(tokenizer, sample, strlen(sample), TOKENIZE_SPECIAL, &ids, &offsets) != ST_OK) goto done;
    ASSERT(offsets.n == 2 * ids.n, "%zu offsets of %zu ids", offsets.n, ids.n);
    for (size_t i = 0; i < ids.n; i++)
        ASSERT(offsets.data[2 * i] <= offsets.data[2 * i + 1] && (size_t)offsets.data[2 * i + 1] <= strlen(sample), "id %zu: %d to %d", i,
               offsets.data[2 * i], offsets.data[2 * i + 1]);
    Status status = tokenizer_decode(tokenizer, ids.data, ids.n, false, &whole);
    stream_init(&stream, tokenizer, false);
    for (size_t i = 0; i < ids.n && status == ST_OK; i++) status = stream_push(&stream, ids.data[i], &sum);
    if (status == ST_OK) status = stream_finish(&stream, &sum);
    stream_release(&stream);
    ASSERT(status != ST_OK || strcmp(str_text(&whole), str_text(&sum)) == 0, "'%s' and '%s'", str_text(&whole), str_text(&sum));
done:
    ids_release(&ids);
    ids_release(&offsets);
    str_release(&whole);
    str_release(&sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    char path[64];
    snprintf(path, sizeof path, "%s/fuzz_tokenizer.%ld.json", temp_root(), (long)getpid());
    Status written = file_write_all(path, bytes, len);
    ASSERT(written == ST_OK, "cannot write '%s'", path);
    Tokenizer *tokenizer;
    Status status = tokenizer_load(path, &tokenizer);
    unlink(path);
    ASSERT(status == ST_OK || (!tokenizer && status_text()[0]), "status %d without a text", (int)status);
    if (status != ST_OK) return 0;
    use(tokenizer);
    tokenizer_free(tokenizer);
    return 0;
}
