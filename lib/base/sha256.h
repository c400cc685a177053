/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4).
 *
 *     Sha256 sha = sha256_begin();
 *     sha256_add(&sha, bytes, n);
 *     char text[SHA256_TEXT];
 *     sha256_end(&sha, text); // "e3b0c442..."
 */
#ifndef TUNE_SHA256_H
#define TUNE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_TEXT = 65 };
typedef struct Sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64]; /* bytes % 64 of them wait */
} Sha256;
Sha256 sha256_begin(void);
void sha256_add(Sha256 *sha, const void *bytes, size_t n);
void sha256_end(Sha256 *sha, char text[SHA256_TEXT]); /* 64 hexadecimal digits and a zero; *sha cannot be used any more */

#endif
