-- title: The study's claims
-- part: The published study
-- note: Each claim as SQL (analysis/claims.toml), judged on this data. Holds if: where the measured mean, or for above and below the whole 95% interval, must lie. Counts, maxima and quotients of means have no interval. Not testable: the data lacks what the claim needs, or does not resolve it. As the data declares: what the results folder says of itself (expected-claims.toml); campaign check fails when a verdict differs from that.
-- empty: No run counts yet.
SELECT setup, verdict, claim, place, CASE WHEN published IS NULL THEN 'no figure' ELSE figure_text(published) END AS published, unit, holds_if, estimate_text(measured) AS measured,
       concat_ws('; ', nullif(reason, ''), caveat, CASE WHEN differs THEN 'DIFFERS: declared ' || expected WHEN expected IS NOT NULL THEN 'as the data declares' END) AS note, id
FROM claims ORDER BY setup, list_position(['reproduced', 'not reproduced', 'not testable'], verdict), place, id;
