/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of choices.def. */
#include "lib/recipe/recipe.h"

/* clang-format off */
#define CHOICES(field) static const char *const field##_texts[] = {
#define CHOICE(constant, text) text,
#define CHOICES_END(field) }; const char *field##_text(enum field value) { return field##_texts[value]; }
/* clang-format on */
#include "lib/recipe/choices.def"
