"""The stages as handlers.

REPORT is written against one function and one job of others:

    from .report import build
    files: dict[str, bytes] = build(found, config, visualizations, narrative)

`found` is a `Findings` (findings.py): the rows of the PCA and of the UMAP job and what is known of the conversation.
`visualizations` are the names asked for, "basic", "enhanced", "multilayer". The answer is every artifact by its name:
"report.html", and "basic.html", "enhanced.html", "multilayer.html" as asked for.

    from . import narrative
    narrative.narrative_job(app)                        # registers NARRATIVE
    request = narrative.request(found, config)          # None where no model is configured
    child = None
    if request is not None:
        await ctx.submit("NARRATIVE", request, key="narrative", stage="NARRATIVE")
        [child] = await ctx.wait_for_children()
    files = build(found, config, visualizations, narrative.told(found, config, child))

Topic names: `llm.configured(model)` is the language model or None, `.ask(prompt, max_tokens)` asks it (blocking).

NARRATIVE is a child of REPORT that hands the request in, snoozes, and looks again until the answer is there.
"""
