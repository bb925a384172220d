"""The command line: one module per noun, each a thin layer over the app.

    main ──▶ a noun (submit, jobs, worker, …) ──▶ app_loader (which app, which url) ──▶ backstay.Backstay

* Stored text reaches the terminal only through `output.safe`: a payload must not be able to control a terminal.
* rich is imported only where something is drawn: a worker does not need it and its memory is counted.
* Results go to stdout; everything said about them goes to stderr, as a line that begins with "backstay: ".
* What a terminal gets (wrapped, drawn, short ids) is decided in `output` alone; a pipe gets everything, in ASCII.
* Commands that take a job id also take a part of one (`app_loader.job_id`).
"""
