"""The stages as handlers.

REPORT is written against one function and one job of others:

    from .report import build
    files: dict[str, bytes] = build(found, config, visualizations, narrative)

`found` is a `Findings` (findings.py): the rows of the PCA and of the UMAP job and what is known of the conversation.
`visualizations` are the names asked for, "basic", "enhanced", "multilayer". `narrative` is the text of the NARRATIVE
job as a list of (heading, paragraphs), or None where no LLM is configured. The answer is every artifact by its name:
"report.html", and "basic.html", "enhanced.html", "multilayer.html" as asked for.

    from .narrative import Narrative, narrative_job
    handler = narrative_job(app)             # registers NARRATIVE
    Narrative(facts=…, model=…, language=…, max_tokens=…)  # its payload; the answer: [[heading, [paragraph, …]], …]

NARRATIVE is a child of REPORT that hands the request in, snoozes, and looks again until the answer is there.
"""
