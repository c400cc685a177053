/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/common/runtime.h"
#include "lib/train/train.h"

Runtime runtime_choose(const char *compute) { return (Runtime){device_cpu(), compute_from_text(compute ? compute : "auto")}; }
