-- title: Preemptions
-- note: The engine's counter (vllm:num_preemptions_total, after less before the load) and the step trace's own count. With equal output lengths mean ITL and mean TPOT are equal unless two tokens arrive in one chunk; preemption cannot make them differ, so their agreement says nothing about it.
SELECT r.setup, r.model, r.profile, r.arm, count(*) AS runs, list(f.preemptions::BIGINT ORDER BY r.repetition, r.pass_number) AS by_counter,
       list(s.preempted ORDER BY r.repetition, r.pass_number) AS by_step_trace, sum(r.num_prompts) AS requests,
       count(*) FILTER (f.preemptions <> s.preempted) AS runs_that_disagree
FROM runs r JOIN run_figures f USING (folder)
LEFT JOIN (SELECT folder, sum(preempted)::BIGINT AS preempted FROM window_steps GROUP BY folder) s ON s.folder = r.folder
GROUP BY r.setup, r.model, r.profile, r.arm ORDER BY ALL;
