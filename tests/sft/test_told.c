/* SPDX-License-Identifier: Apache-2.0 */
/* Long parts of a run report their progress, which does not change the result. */
#include "lib/base/work.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <stdio.h>
#include <string.h>

/* Each name once, in the order in which they came; and that it is over. */
static void keep_name(void *context, const Work *work) {
    Str *names = context;
    char name[128];
    snprintf(name, sizeof name, "[%s]", work->what ? work->what : "over");
    if (!work->what || !strstr(str_text(names), name)) str_append(names, name);
    assert_true(work->total == 0 || work->done <= work->total);
    if (work->what && strstr(work->what, "tokenising")) assert_true(work->bytes && work->total > 0); /* of lines of a plain file it is known */
}

static void told_run(const char *name, bool resume, const char *steps) {
    TrainResult result;
    Recipe *recipe = recipe_of_lines(
        "model.path=recipes/demo/model\ndata.train=%s\ndata.eval_split=0.2\ndata.cache=%s\noutput=%s\nlora.rank=8\ntrain.batch_size=4\n"
        "train.save_every=1\ntrain.max_steps=%s",
        temp_file(test_folder, "rows.jsonl"), temp_file(test_folder, "cache"), temp_file(test_folder, name), steps);
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume}, &result));
    recipe_free(recipe);
}

TEST(a_run_tells_what_takes_long) {
    static const char *const parts[] = {"[looking at the rows' files]",
                                        "[reading and tokenising rows]",
                                        "[looking for equal rows]",
                                        "[loading the model, tensors]",
                                        "[looking for rows much alike]",
                                        "[comparing training rows with those for evaluation]",
                                        "[looking at every row]",
                                        "[evaluating on held-out rows, batches]",
                                        "[saving]",
                                        "[checking the checkpoint]",
                                        "[over]"};
    Str rows = {0}, names = {0}, told = {0}, silent = {0};
    for (int i = 0; i < 20; i++)
        str_printf(&rows, "{\"prompt\": \"%d plus %d is\", \"completion\": \" %d, and that is all there is to it\"}\n", i, i, 2 * i);
    temp_text(test_folder, "rows.jsonl", str_text(&rows));
    work_set_sink(keep_name, &names);
    told_run("told", false, "2");
    work_set_sink(NULL, NULL);
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!strstr(str_text(&names), parts[i])) fail_msg("%s is not among %s", parts[i], str_text(&names));
    assert_true(text_ends_with(str_text(&names), "[over]")); /* nothing stays on the terminal */
    told_run("silent", false, "2");
    metrics_text(temp_file(test_folder, "told"), &told);
    metrics_text(temp_file(test_folder, "silent"), &silent);
    assert_string_equal(str_text(&told), str_text(&silent));
    check_same_file(test_folder, "told", "silent", "adapter/adapter_model.safetensors");
    str_release(&rows);
    str_release(&names);
    str_release(&told);
    str_release(&silent);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_tells_what_takes_long)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
