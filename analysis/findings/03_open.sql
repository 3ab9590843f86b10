-- title: What stays open
-- note: The study's other claims, by what they need that this data lacks.
-- empty: Every claim is decided.
SELECT setup, CASE WHEN starts_with(reason, 'a figure of the card') THEN 'the study''s card' WHEN starts_with(reason, 'needs trained weights') THEN 'trained weights'
                   WHEN starts_with(reason, 'needs') THEN 'more blocks, or a cell or arm that is not measured' ELSE 'an interval that decides' END AS needs,
       count(*) AS claims
FROM claims WHERE verdict = 'not testable' GROUP BY ALL ORDER BY setup, claims DESC, needs;
