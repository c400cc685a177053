/* SPDX-License-Identifier: Apache-2.0 */
/* See compute.h. */
#include "lib/tensor/compute.h"

#include <string.h>

DType compute_auto(void) { return cpu_info()->auto_bf16 ? DT_BF16 : DT_F32; }

DType compute_from_text(const char *text) {
    if (strcmp(text, "auto") == 0) return compute_auto();
    return strcmp(text, "bf16") == 0 ? DT_BF16 : DT_F32;
}
