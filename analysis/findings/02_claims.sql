-- title: What reproduced of the study, and what not
-- note: The study's claims on which this data can decide; how each is judged stands in the report and in analysis/claims.toml.
-- empty: No claim can be decided on this data.
SELECT setup, verdict, claim || coalesce(' (' || caveat || ')', '') AS claim, CASE WHEN published IS NULL THEN 'no figure' ELSE figure_text(published) END AS published, unit, estimate_text(measured) AS here
FROM claims WHERE verdict <> 'not testable' ORDER BY setup, verdict DESC, place, id;
