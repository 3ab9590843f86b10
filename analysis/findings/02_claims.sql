-- title: What reproduced of the study, and what not
-- note: The study's claims on which this data can decide. Holds if: where the measured value, or for above and below its whole interval, must lie. Above or below 1 or 0 asks for the sign alone: the size may be far from the study's, whose card and host are others. Values are as measured: what is compared with eager can owe part of its size to the host's stalls (table Without the host's stalls). TPOT of a cell whose pools differ compares batches of two sizes; at equal KV blocks it is a claim of its own.
-- empty: No claim can be decided on this data.
SELECT setup, verdict, claim || coalesce(' (' || caveat || ')', '') AS claim, CASE WHEN published IS NULL THEN 'no figure' ELSE figure_text(published) END AS published, unit, holds_if, estimate_text(measured) AS here
FROM claims WHERE verdict <> 'not testable' ORDER BY setup, verdict DESC, place, id;
