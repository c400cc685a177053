/* SPDX-License-Identifier: Apache-2.0 */
/* The one file that knows the version: it alone is compiled again when the version changes (Makefile: $(BUILD)/version). */
#include "cmd/app/app.h"

const char tune_version[] = TUNE_VERSION;
const char tune_program[] = "tune " TUNE_VERSION;
const char tune_released[] = TUNE_RELEASED;
