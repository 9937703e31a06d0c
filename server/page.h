/** Files that are part of the program: the page, its script and style, the API's description. */
#ifndef H3AV_SERVER_PAGE_H
#define H3AV_SERVER_PAGE_H

#include "http.h"

enum MHD_Result srv_page(srv_req *r); ///< by r->route->path

#endif
