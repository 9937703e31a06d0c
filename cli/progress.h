/** What a run shows while it works: a line that is redrawn on a terminal, lines in a log, or one
 * JSON object per event. */
#ifndef H3_CLI_PROGRESS_H
#define H3_CLI_PROGRESS_H

#include <h3av/h3av.h>

typedef struct progress {
    bool is_json, is_verbose, is_quiet, is_terminal;
    long line;          ///< of --batch, told in events; 0: none
    long video, videos; ///< of --count, told in events and shown; 0: there is one
    int line_width;     ///< characters of the line that is on the screen, 0: none
    double last_draw;
} progress;

void progress_init(progress *p, bool is_json, bool is_verbose, bool is_quiet);

/** An h3_event_fn; `user` is the progress. */
void progress_event(void *user, const h3_event *ev);

/** Timings by stage, peaks and the file, at the end. */
void progress_result(progress *p, const h3_result *rs, const char *file);

/** Clears a line in progress; call before printing anything else. */
void progress_clear(progress *p);

/** Writes text as a JSON string with quotes. */
void json_text(const char *s);

#endif
