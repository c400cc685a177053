/* Works of tune bench that need no language model. */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "cmd/cmd.h"

/* Acting and training of a tiny network: microseconds, and the share of what products reach on all threads. */
Status bench_mlp(const Command *command);
/* PPO on CartPole with the settings of other programs: environment steps a second of the whole run, and of its best update. */
Status bench_ppo(const Command *command);
/* ROUGE-L and all filters of texts over as many instructions as Alpaca has. */
Status bench_filter(const Command *command);

#endif
