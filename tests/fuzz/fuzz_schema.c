/* SPDX-License-Identifier: Apache-2.0 */
/* A schema in the first line, then a value. Either the schema is refused with a message, or the value fits or not; within `not` the answer is the
 * opposite. */
#include <string.h>

#include "rl/reward/json_schema.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const uint8_t *newline = len ? memchr(bytes, '\n', len) : NULL;
    if (!newline) return 0;
    json_t *schema, *value = NULL;
    if (json_read_text((const char *)bytes, (size_t)(newline - bytes), "schema", &schema) != ST_OK) return 0;
    if (schema_check(schema, "the schema") != ST_OK) {
        ASSERT(status_text()[0], "no text");
    } else if (json_read_text((const char *)newline + 1, len - (size_t)(newline - bytes) - 1, "value", &value) == ST_OK) {
        json_t *inverse = json_pack("{s:O}", "not", schema);
        SchemaFit fit = schema_fits(schema, value), turned = schema_fits(inverse, value);
        ASSERT(fit == SCHEMA_UNDECIDED ? turned == fit : turned == (fit == SCHEMA_FITS ? SCHEMA_DIFFERS : SCHEMA_FITS), "neither or both");
        json_decref(inverse);
    }
    json_decref(schema);
    json_decref(value);
    return 0;
}
