/** Jobs as clients see them: OpenAI's video object, with more fields behind. */
#ifndef H3AV_SERVER_OBJECT_H
#define H3AV_SERVER_OBJECT_H

#include "state.h"

/** The object of a job, live progress mixed in. */
json_t *srv_video_json(srv *s, const srv_job *j);
/** When to ask again, in milliseconds: a tenth of what is left, within bounds. */
int srv_poll_after_ms(srv *s, const srv_job *j);
/** 0..100; 100 only when completed. */
int srv_progress(const srv_job *j, const srv_live *l);

#endif
