/** Files of finished jobs over HTTP: whole, in ranges, conditionally. */
#ifndef H3AV_SERVER_CONTENT_H
#define H3AV_SERVER_CONTENT_H

#include "http.h"

/** GET /v1/videos/{id}/content[?variant=video|thumbnail|audio] */
enum MHD_Result srv_content(srv_req *r);
/** The video of a finished job as the answer of /v1/videos/sync, with headers about the run. */
enum MHD_Result srv_content_of(srv_req *r, const srv_job *j);

#endif
