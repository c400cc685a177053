/* SPDX-License-Identifier: Apache-2.0 */
/* docs/recipe-keys.md: every key of config.def, with its type, default, range and help, grouped by what it belongs to. With TUNE_UPDATE in the
 * environment the page is written instead of compared. */
#include "lib/base/file.h"
#include "lib/recipe/keys.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#define PAGE "docs/recipe-keys.md"

static const char *const types[] = {
    [KEY_INT] = "whole number",   [KEY_REAL] = "number",           [KEY_BOOL] = "true or false", [KEY_TEXT] = "text",
    [KEY_CHOICE] = "one of",      [KEY_NAME] = "one of",           [KEY_LIST] = "list of texts", [KEY_REALS] = "list of numbers",
    [KEY_MAP] = "map of numbers", [KEY_NODE] = "text, list or map"};

/* In a cell of a table. */
static void add_cell(Str *page, const char *text) {
    for (; *text; text++) {
        if (*text == '|' || *text == '*') str_append_char(page, '\\');
        str_append_char(page, *text);
    }
}

static void add_values(Str *page, const Key *key) {
    const char *choices = key->choices, *between = "";
    for (Slice word; choice_next(&choices, &word); between = ", ") str_printf(page, "%s`%.*s`", between, (int)word.len, word.data);
    if (key->low[0] && key->high[0])
        str_printf(page, "%s to %s", key->low, key->high);
    else if (key->low[0])
        str_printf(page, "at least %s", key->low);
    else if (key->high[0])
        str_printf(page, "at most %s", key->high);
}

static void add_key(Str *page, const Key *key) {
    str_printf(page, "| `%s` | %s | `%s` | ", key->dotted, types[key->type], key->fallback);
    add_values(page, key);
    str_append(page, " | ");
    add_cell(page, key->help);
    str_append(page, " |\n");
}

static void add_section(Str *page, const char *section) {
    bool grouped = section_owners(section) > 1;
    for (const Key *key = NULL, *last = NULL; (key = key_listed_after(section, last)); last = key) {
        bool begins = !last || (grouped && last->owner != key->owner);
        if (begins && grouped) str_printf(page, "\n### %s\n", recipe_owners[key->owner].title);
        if (begins) str_append(page, "\n| key | type | default | values | meaning |\n|---|---|---|---|---|\n");
        add_key(page, key);
    }
}

static void write_page(Str *page) {
    str_append(page,
               "# Recipe keys\n\n"
               "In a recipe a key is written as `section: {key: value}`, on the command line as `section.key=value`. `tune help KEY` explains a\n"
               "key, `tune COMMAND --help` lists the keys that a command takes, and `tune COMMAND --schema` prints their JSON schema.\n\n"
               "This page is generated from `lib/recipe/config.def` by `tests/recipe/test_recipe_keys_page.c`, which fails if the page is out of\n"
               "date. `TUNE_UPDATE=1 make test T=test_recipe_keys_page` writes it.\n\n"
               "## Without a section\n");
    add_section(page, "");
    for (size_t i = 0; i < n_recipe_sections; i++) {
        str_printf(page, "\n## %s: %s\n", recipe_sections[i].name, recipe_sections[i].help);
        add_section(page, recipe_sections[i].name);
    }
}

TEST(the_page_of_recipe_keys_is_up_to_date) {
    Str page = {0}, have = {0};
    write_page(&page);
    if (getenv("TUNE_UPDATE")) check_ok(file_write_all(PAGE, page.data, page.len));
    check_ok(file_read(PAGE, 1 << 20, &have));
    if (strcmp(str_text(&page), str_text(&have)) != 0) fail_msg(PAGE " is out of date: TUNE_UPDATE=1 make test T=test_recipe_keys_page writes it");
    str_release(&page);
    str_release(&have);
}

/* Each key is listed once, and all of an owner one after the other. */
TEST(keys_are_listed_owner_by_owner) {
    size_t n = 0;
    for (size_t s = 0; s <= n_recipe_sections; s++) {
        const char *section = s ? recipe_sections[s - 1].name : "";
        for (const Key *key = NULL, *last = NULL; (key = key_listed_after(section, last)); last = key, n++) {
            assert_string_equal(key->section, section);
            assert_true(!last || last->owner < key->owner || (last->owner == key->owner && last < key));
        }
    }
    assert_int_equal(n, n_recipe_keys);
    assert_string_equal(key_listed_after("rl", key_find("rl.gamma"))->dotted, "rl.env");
    assert_int_equal(section_owners("lora"), 1);
    assert_int_equal(section_owners("rl"), 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_page_of_recipe_keys_is_up_to_date), cmocka_unit_test(keys_are_listed_owner_by_owner)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
