add_executable(h3av cli/main.c cli/args.c cli/batch.c cli/progress.c cli/prompt.c cli/ranks.c cli/report.c cli/stop.c)
target_link_libraries(h3av PRIVATE h3)
