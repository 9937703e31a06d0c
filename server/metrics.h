/** /health, /ready, /metrics and /v1/models. */
#ifndef H3AV_SERVER_METRICS_H
#define H3AV_SERVER_METRICS_H

#include "http.h"

enum MHD_Result srv_health(srv_req *r);
enum MHD_Result srv_ready(srv_req *r);
enum MHD_Result srv_metrics_text(srv_req *r);
enum MHD_Result srv_models(srv_req *r);
enum MHD_Result srv_model(srv_req *r); ///< the one that is served, which the path has named

#endif
