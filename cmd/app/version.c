/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that depends on the version, so that a new version recompiles no other (Makefile: $(BUILD)/version). */
#include "cmd/app/app.h"

const char tune_version[] = TUNE_VERSION;
const char tune_program[] = "tune " TUNE_VERSION;
const char tune_released[] = TUNE_RELEASED;
