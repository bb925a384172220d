"""The command line: one module per noun, each a thin face over the app.

    main ──▶ a noun (submit, jobs, show, worker, …) ──▶ apps (which app, which url) ──▶ holdfast.Holdfast

* Stored text reaches the terminal only through `text.safe`: a payload must not be able to drive a terminal.
* rich is imported by what draws, when it draws: a worker has no use for it and its memory is counted.
* Results go to stdout; everything said about them goes to stderr, as a line that begins with "holdfast: ".
* What a terminal gets (wrapped, drawn, short ids) is decided in `output` alone; a pipe gets everything, in ASCII.
* Where an id is asked for, `lookup` takes a part of one.
"""
