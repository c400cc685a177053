/* Matrix products by OpenBLAS and oneDNN behind one door (host_gemm*.c), as far as the rest of the device needs to know it. */
#ifndef TUNE_GEMM_H
#define TUNE_GEMM_H

#include "lib/tensor/tensor.h"

/* NULL or "auto", "openblas", "onednn". ST_USAGE when the name is not known or the build does not have it. */
Status gemm_configure(const char *gemm);
/* Fills in what CpuInfo says about products; `features` is there already. */
void gemm_describe(CpuInfo *info);
/* The device's packed_bytes and packed_free. */
size_t gemm_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward);
void gemm_packed_free(void *packed);
size_t gemm_scratch_bytes(void); /* kept between products, all threads, bytes */

#endif
