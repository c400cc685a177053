/* Works of tune bench that need no language model. */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "cmd/cmd.h"

/* Acting and training of a tiny network: microseconds, and the share of what products reach on all threads. */
Status bench_mlp(const Command *command);

#endif
