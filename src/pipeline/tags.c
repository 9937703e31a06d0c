/**
 * Tags of a prompt; see tags.h. The model knows the labels of its references and seven tokens of
 * dialogue and sound. Anything else between < and > reaches it as plain words, as the reference
 * has it: that is no error, and seldom meant.
 */
#include "tags.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

enum { LONGEST_TAG = 48 }; // bytes between < and >; longer ones are text

static const char *const words[] = {"Picture", "Video", "Audio"};

/* The largest N of "<word N>" in a prompt; 0: there is none. */
static int last_label(const char *prompt, const char *word)
{
    const size_t n = strlen(word);
    int last = 0;

    for (const char *p = prompt; p && (p = strchr(p, '<')); p++) {
        char *end;
        if (strncmp(p + 1, word, n) != 0 || p[1 + n] != ' ') continue;
        const long v = strtol(p + 2 + n, &end, 10);
        if (*end == '>' && v > last && v < 1000) last = (int)v;
    }
    return last;
}

static void warn_of_labels(h3_plan *p, const char *prompt)
{
    int n[3] = {0, 0, 0};

    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition_shape *s = &p->conditions[i].shape;
        n[0] += s->kind != H3_COND_VIDEO && s->kind != H3_COND_AUDIO;
        n[1] += s->kind == H3_COND_VIDEO;
        n[2] += s->n_audio > 0;
    }
    for (int k = 0; k < 3; k++) {
        const int last = last_label(prompt, words[k]);
        if (last > n[k])
            h3_plan_warn(p, H3_NOTE_LABEL,
                         "the prompt names <%s %d>, and %d such reference%s given", words[k], last,
                         n[k], n[k] == 1 ? " is" : "s are");
    }
}

/* The bytes of what looks like a tag at the < of `p`: a letter of any script, / or | after it, and
 * its > in the same line. 0: it is text ("a < b", "<3"). */
static size_t tag_bytes(const char *p)
{
    const unsigned char c = (unsigned char)p[1];
    const bool is_letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    size_t n = 1;

    if (!is_letter && c < 0x80 && c != '/' && c != '|') return 0;
    while (p[n] && !strchr("<>\n", p[n]))
        n++;
    return p[n] == '>' && n <= LONGEST_TAG ? n + 1 : 0;
}

/* Is it "<Picture N>", "<Video N>" or "<Audio N>", as references are numbered? */
static bool is_label(const char *tag)
{
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        const size_t n = 1 + strlen(words[k]);
        if (strncmp(tag + 1, words[k], n - 1) != 0 || tag[n] != ' ' || tag[n + 1] == '0') continue;
        return tag[n + 1 + strspn(tag + n + 1, "0123456789")] == '>' && tag[n + 1] != '>';
    }
    return false;
}

/* Which of the tokens it is, or -1. */
static int token_of(const char *tag, size_t bytes)
{
    for (int i = 0; i < H3_TOK_DIALOGUE; i++)
        if (strlen(h3_tok_dialogue[i]) == bytes && memcmp(tag, h3_tok_dialogue[i], bytes) == 0)
            return i;
    return -1;
}

static void warn_of_marks(h3_plan *p, const char *prompt)
{
    static const int pairs[][2] = {{0, 1}, {3, 4}, {5, 6}}; // of h3_tok_dialogue
    int n[H3_TOK_DIALOGUE] = {0};
    const char *odd = NULL;
    size_t odd_bytes = 0;

    for (const char *s = prompt; s && (s = strchr(s, '<')); s++) {
        const size_t bytes = tag_bytes(s);
        const int t = bytes ? token_of(s, bytes) : -1;
        if (t >= 0) n[t]++;
        if (!bytes || t >= 0 || odd || is_label(s)) continue;
        odd = s;
        odd_bytes = bytes;
    }
    if (odd)
        h3_plan_warn(p, H3_NOTE_TAG,
                     "%.*s in the prompt is no tag of this model, which reads it as plain words; "
                     "references are <Picture 1>, <Video 1>, <Audio 1>, speech is <d>...</d>",
                     (int)odd_bytes, odd);
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        const int begin = pairs[k][0], end = pairs[k][1];
        if (n[begin] != n[end])
            h3_plan_warn(p, H3_NOTE_TAG, "the prompt has %d %s and %d %s; they come in pairs",
                         n[begin], h3_tok_dialogue[begin], n[end], h3_tok_dialogue[end]);
    }
}

void h3_tags_warn(h3_plan *p, const char *prompt)
{
    warn_of_labels(p, prompt);
    warn_of_marks(p, prompt);
}
