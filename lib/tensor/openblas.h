/* SPDX-License-Identifier: Apache-2.0 */
/* OpenBLAS, loaded when it is first needed. The program is not linked to it, because OpenBLAS allocates memory when it is loaded and, if a limit
 * (ulimit -v) leaves too little, retries for ever: then the program would not reach main. */
#ifndef TUNE_OPENBLAS_H
#define TUNE_OPENBLAS_H

#include "lib/base/base.h"

enum { BLAS_ROW_MAJOR = 101, BLAS_AS_IT_IS = 111, BLAS_TRANSPOSED = 112 }; /* of cblas.h */
typedef struct OpenBlas {
    char version[64]; /* "openblas 0.3.21 (Zen)" */
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                  float beta, float *c, int ldc);
    void (*dgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha, const double *a, int lda, const double *b, int ldb,
                  double beta, double *c, int ldc);
    /* LAPACK with its Fortran names, because the location of its C header differs between systems */
    void (*dgetrf)(const int *m, const int *n, double *a, const int *lda, int *pivots, int *info);
    void (*dgetrs)(const char *trans, const int *n, const int *columns, const double *a, const int *lda, const int *pivots, double *b, const int *ldb,
                   int *info, size_t trans_len);
    void (*dgbtrf)(const int *m, const int *n, const int *below, const int *above, double *a, const int *lda, int *pivots, int *info);
    void (*dgbtrs)(const char *trans, const int *n, const int *below, const int *above, const int *columns, const double *a, const int *lda,
                   const int *pivots, double *b, const int *ldb, int *info, size_t trans_len);
} OpenBlas;
/* Loads the library once; *blas stays valid. threads: number of threads that will call it at the same time. ST_RESOURCE: the library is missing, or
 * there is not enough memory for it. */
Status openblas_load(int threads, const OpenBlas **blas);

#endif
