/** See prompt.h. */
#include "prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum { MAX_PROMPT = 1 << 20 };

/* Reads a prompt from `f`: text without a byte order mark and without the last line's end. */
static int read_prompt(char **out, FILE *f, const char *path)
{
    char *text = *out = malloc(MAX_PROMPT + 1);
    size_t n = text ? fread(text, 1, MAX_PROMPT, f) : 0;

    if (!text || ferror(f)) return report_said(3, "%s: %s", path, strerror(errno));
    if (n == MAX_PROMPT)
        return report_said(2, "%s: a prompt of more than %d bytes", path, MAX_PROMPT - 1);
    if (memchr(text, '\0', n))
        return report_said(2, "%s: holds a zero byte, so it is no text in UTF-8", path);
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) memmove(text, text + 3, n -= 3);
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    text[n] = '\0';
    return 0;
}

static int open_prompt(char **out, const char *path)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    int status;

    if (!f) return report_said(errno == ENOENT ? 5 : 3, "%s: %s", path, strerror(errno));
    status = read_prompt(out, f, path);
    if (!is_stdin) fclose(f);
    return status;
}

int prompt_take(cli *c, char **owned)
{
    if ((c->n_args > 0) + (c->rq.prompt != NULL) + (c->prompt_file != NULL) > 1)
        return report_said(2, "the prompt is given twice");
    if (c->n_args > 0) c->rq.prompt = c->arg[0];
    if (c->prompt_file) {
        const int status = open_prompt(owned, c->prompt_file);
        if (status) return status;
        c->rq.prompt = *owned;
    }
    return 0;
}
