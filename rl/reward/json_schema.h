/* SPDX-License-Identifier: Apache-2.0 */
/* A subset of JSON Schema 2020-12: what a value must be.
 *
 *     TRY(schema_check(schema, "the schema"));         // names the keyword that is not supported
 *     if (schema_fits(schema, value) != SCHEMA_FITS) ...
 *
 * type, enum, const; properties, required, additionalProperties, minProperties, maxProperties; items, minItems, maxItems, uniqueItems; minimum,
 * maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; minLength, maxLength, pattern; allOf, anyOf, oneOf, not; true and false as schemas.
 * Titles, descriptions, defaults, examples and comments are ignored. */
#ifndef TUNE_JSON_SCHEMA_H
#define TUNE_JSON_SCHEMA_H

#include "lib/base/file.h"
#include "lib/base/json.h"

/* ST_CONFIG: a keyword that is not supported ($ref, if, format, ...), or a keyword with an invalid value. `where`: for the message. */
Status schema_check(const json_t *schema, const char *where);
/* Checks a value. The schema must have passed schema_check. Undecided: a pattern took too many steps, or there was no memory for it. */
typedef enum SchemaFit { SCHEMA_DIFFERS, SCHEMA_FITS, SCHEMA_UNDECIDED } SchemaFit;
SchemaFit schema_fits(const json_t *schema, const json_t *value);

#endif
