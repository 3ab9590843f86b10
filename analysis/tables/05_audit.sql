-- title: The study's figures checked against each other
-- note: Arithmetic on published figures alone (analysis/published.toml); nothing measured here enters, except that the scheduling model is given the pool that they imply. Agrees: within rounding of the figures used.
WITH f AS (
    SELECT pub('load', 'all', 'all', 'max_model_len') AS context, pub('load', 'all', 'all', 'default_model_len') AS default_context, pub('load', 'all', 'all', 'output_tokens') AS out_tokens,
           pub('load', 'all', 'all', 'input_tokens') AS in_tokens, pub('load', 'all', 'sustained', 'concurrency') AS clients, pub('load', 'all', 'sustained', 'prompts') AS prompts,
           (pub('output_tok_s', '32b', 'sustained', 'graphs_least') + pub('output_tok_s', '32b', 'sustained', 'graphs_greatest')) / 2 AS tok_s_g,
           (pub('output_tok_s', '32b', 'sustained', 'eager_least') + pub('output_tok_s', '32b', 'sustained', 'eager_greatest')) / 2 AS tok_s_e,
           pub('tpot_ms', '32b', 'sustained', 'graphs') AS tpot_g, pub('tpot_ms', '32b', 'sustained', 'eager') AS tpot_e,
           pub('overload', '32b', 'sustained', 'all') AS over_32, pub('overload', '7b', 'sustained', 'all') AS over_7, pub('overload', '32b', 'sporadic', 'all') AS over_32_1,
           pub('kv_bytes_per_token', '32b', 'all', 'all') / 2 ** 30 AS gib_token, pub('graph_gib', '32b', 'all', 'graphs') AS graph_gib,
           pub('duration_s', '32b', 'sustained', 'graphs') AS dur_g, pub('duration_s', '32b', 'sustained', 'eager') AS dur_e, pub('output_tokens', '32b', 'sustained', 'graphs') AS tokens,
           pub('tok_per_j', '32b', 'sustained', 'graphs') AS tj_g, pub('tok_per_j', '32b', 'sustained', 'eager') AS tj_e,
           pub('mean_power_w', '32b', 'sustained', 'graphs') AS w_g, pub('mean_power_w', '32b', 'sustained', 'eager') AS w_e, pub('energy_window_s', '32b', 'sustained', 'all') AS span,
           pub('generation_span_s', '32b', 'sustained', 'all') AS generating, pub('useful_pct', '32b', 'sustained', 'all') AS useful,
           pub('tpot_ms', '32b', 'sporadic', 'gain_pct') AS gain_1, pub('start_s', '7b', 'all', 'difference') AS start_7, pub('start_s', '32b', 'all', 'difference') AS start_32
), g AS (
    SELECT f.*, tok_s_g * tpot_g / 1000 * (out_tokens - 1) / out_tokens AS decode_g, tok_s_e * tpot_e / 1000 * (out_tokens - 1) / out_tokens AS decode_e,
           clients / over_32 * context AS kv_32, kv_32 * gib_token AS kv_gib, clients / over_7 * default_context AS kv_7_default,
           128 / pub('output_tok_s', '7b', 'sustained', 'eager') - 128 / pub('output_tok_s', '7b', 'sustained', 'graphs') AS saving_7s,
           m.steps[1] AS steps_g, m.steps[2] AS steps_e, m.preempted[1] AS preempted_g
    FROM f, (SELECT list(steps ORDER BY kv_blocks) AS steps, list(preempted ORDER BY kv_blocks) AS preempted FROM model_steps WHERE setup = 'published study') m
)
SELECT subject, figure, published, recomputed, agrees, why_it_matters FROM (
SELECT unnest([
{n: 1, subject: 'Little''s law', figure: 'requests in decode, 32B sustained: tokens/s × TPOT × 127/128', published: 'not given; ' || clients::INTEGER || ' clients in both arms', recomputed: format('graphs {:.1f}, eager {:.1f}: {:+.1f}%', decode_g, decode_e, 100 * (decode_g / decode_e - 1)), agrees: 'no',
 why_it_matters: 'The graphs arm decoded fewer requests at a time. Faster decode and lower throughput in one run follow from that; the question is what kept requests out.'},
{n: 2, subject: 'TPOT at unequal batch', figure: 'TPOT gain of the overloaded 32B cell', published: format('{:.2f}% faster decode', pub('tpot_ms', '32b', 'sustained', 'gain_pct')), recomputed: format('{:.2f}%, but at {:.1f} against {:.1f} requests', 100 * (1 - tpot_g / tpot_e), decode_g, decode_e), agrees: 'in part',
 why_it_matters: 'A smaller batch decodes faster whatever executes it. TPOT of this cell is no evidence of faster kernels.'},
{n: 3, subject: 'KV pool', figure: 'pool of the 32B with graphs, from its overload', published: format('{:.1f}x of {} clients', over_32, clients::INTEGER), recomputed: format('{:.0f} tokens = {:.2f} GiB; with the graphs'' {:.2f} GiB given back {:.2f} GiB, so {:.1f}% less', kv_32, kv_gib, graph_gib, kv_gib + graph_gib, 100 * graph_gib / (kv_gib + graph_gib)), agrees: 'not considered',
 why_it_matters: 'vLLM 0.23.0 takes the estimated graph memory out of the KV cache of the graphs arm only: the two arms did not have the same pool.'},
{n: 4, subject: 'KV pool', figure: 'engine steps while requests wait that the scheduling model needs for the two pools', published: 'not given', recomputed: coalesce(format('graphs {}, eager {}: {:+.1f}%; with the step {:.2f}% faster of concurrency 1: {:+.1f}% decode time', steps_g, steps_e, 100 * (steps_g / steps_e - 1), gain_1, 100 * (steps_g / steps_e * (1 - gain_1 / 100) - 1)), 'not computed'), agrees: 'not considered',
 why_it_matters: 'The smaller pool alone needs more steps for the same tokens. Diluted by prefill, common to both arms, it is a loss of some 4% by the scheduling model with steps of the study''s length (campaign advise; 2 to 4% within 2% of these pools), with no padding in it; the study has 5%: the rest is not explained.'},
{n: 5, subject: 'Preemption', figure: 'preemptions, 32B sustained with graphs', published: 'none', recomputed: coalesce('the scheduling model: ' || preempted_g, 'not computed') || format('; {} requests of {} tokens ask for {:.1f} times the pool', clients::INTEGER, (in_tokens + out_tokens)::INTEGER, clients * (in_tokens + out_tokens) / kv_32), agrees: 'no',
 why_it_matters: 'The evidence given is the server log, and this version''s log prints no preemptions. Only the engine''s counter tells.'},
{n: 6, subject: 'ITL and TPOT', figure: 'mean ITL less mean TPOT', published: 'equal to two decimals: no preemption', recomputed: 'with equal output lengths equal unless two tokens arrive in one chunk; preemption cannot make them differ', agrees: 'identity',
 why_it_matters: 'A difference would tell of chunks and not of preemptions, so agreement is no evidence that there were none.'},
{n: 7, subject: 'Overload', figure: '7B sustained at ' || context::INTEGER || ' tokens', published: format('{:.1f}x', over_7), recomputed: format('{:.2f}x: {:.1f}x needs the default context of {}', clients / (kv_7_default / context), over_7, default_context::INTEGER), agrees: 'no',
 why_it_matters: 'The 7B is not overloaded at all: of the four cells one is, so a trend over overload rests on one point.'},
{n: 8, subject: 'Overload', figure: '32B sporadic, from the pool of the sustained cell', published: format('{:.1f}x', over_32_1), recomputed: format('{:.2f}x', context / kv_32), agrees: 'yes', why_it_matters: 'The 32B row does use the stated context.'},
{n: 9, subject: 'Energy', figure: 'tokens/J × mean power × the fixed span, 32B', published: tokens::INTEGER || ' tokens', recomputed: format('graphs {:.0f}, eager {:.0f}', tj_g * w_g * span, tj_e * w_e * span), agrees: 'yes', 
 why_it_matters: 'Tokens per joule are tokens over mean power times a span that is the same in both arms, and nothing more.'},
{n: 10, subject: 'Energy', figure: 'change of tokens/J against inverse change of mean power, 32B', published: format('{:+.1f}% tokens/J', pub('tok_per_j', '32b', 'sustained', 'change_pct')), recomputed: format('{:+.2f}% from power alone', 100 * (w_e / w_g - 1)), agrees: 'yes',
 why_it_matters: 'The loads lasted ' || dur_g || ' and ' || dur_e || ' s of the same span; their energy was not measured. It is no second witness of the throughput loss.'},
{n: 11, subject: 'Energy', figure: 'share of the span in which tokens were generated, 32B', published: useful::INTEGER || '% useful', recomputed: format('{:.0f}% from its own {} of {} s; {:.0f}% and {:.0f}% from the durations', 100 * generating / span, generating::INTEGER, span::INTEGER, 100 * dur_g / span, 100 * dur_e / span), agrees: 'no',
 why_it_matters: 'A quarter to a half of the span is idle power, common to both arms, which dilutes any difference.'},
{n: 12, subject: 'Excluded start', figure: 'starts of the 32B with graphs after one cold start is left out', published: format('n = {} (and n = {} for the 7B)', pub('start_n', '32b', 'all', 'graphs')::INTEGER, pub('start_n', '7b', 'all', 'graphs')::INTEGER), recomputed: format('n = {}', (10 - pub('excluded_starts', '32b', 'all', 'graphs'))::INTEGER), agrees: 'no',
 why_it_matters: 'The text excludes a start of the 32B, the table one of the 7B. Either the 32B mean holds a cold start or a 7B start is missing without a reason.'},
{n: 13, subject: 'Break-even', figure: '7B sporadic, requests', published: '~' || pub('break_even', '7b', 'sporadic', 'all')::INTEGER, recomputed: format('{:.0f}', start_7 / (pub('saving_ms', '7b', 'sporadic', 'all') / 1000)), agrees: 'yes', why_it_matters: 'Holds for the card and the poll of 2 s that it was measured with.'},
{n: 14, subject: 'Break-even', figure: '7B sustained, requests', published: '~' || pub('break_even', '7b', 'sustained', 'all')::INTEGER, recomputed: format('{:.0f} ({:.2f} ms a request)', start_7 / saving_7s, 1000 * saving_7s), agrees: 'yes', why_it_matters: 'A difference of two rounded throughputs: 1% on either moves it by a fifth.'},
{n: 15, subject: 'Break-even', figure: '32B sporadic, requests', published: '~' || pub('break_even', '32b', 'sporadic', 'all')::INTEGER, recomputed: format('{:.0f}', start_32 / (pub('saving_ms', '32b', 'sporadic', 'all') / 1000)), agrees: 'yes', why_it_matters: 'As above.'},
{n: 16, subject: 'Saving a request', figure: '128 × TPOT difference at concurrency 1, ms', published: format('7B {}, 32B {}', pub('saving_ms', '7b', 'sporadic', 'all')::INTEGER, pub('saving_ms', '32b', 'sporadic', 'all')::INTEGER),
 recomputed: format('7B {:.0f}, 32B {:.0f}', out_tokens * (pub('tpot_ms', '7b', 'sporadic', 'eager') - pub('tpot_ms', '7b', 'sporadic', 'graphs')), out_tokens * (pub('tpot_ms', '32b', 'sporadic', 'eager') - pub('tpot_ms', '32b', 'sporadic', 'graphs'))), agrees: 'yes', why_it_matters: 'Decode only; the first token is left out, which is small at this length.'},
{n: 17, subject: 'Start', figure: 'capture + compile over the engine-init difference', published: pub('accounted_pct', '7b', 'all', 'difference')::INTEGER || '% both', 
 recomputed: format('7B {:.0f}%, 32B {:.0f}%', 100 * (pub('capture_s', '7b', 'all', 'graphs') + pub('compile_s', '7b', 'all', 'graphs')) / pub('engine_init_s', '7b', 'all', 'difference'), 100 * (pub('capture_s', '32b', 'all', 'graphs') + pub('compile_s', '32b', 'all', 'graphs')) / pub('engine_init_s', '32b', 'all', 'difference')), agrees: 'yes', why_it_matters: 'The flag also turns off the compiler: its price is not that of graphs alone.'},
{n: 18, subject: 'Throughput', figure: 'change, 32B sustained, from the middle of the ranges; from the durations', published: format('{:+.2f}%', pub('throughput', '32b', 'sustained', 'change_pct')), recomputed: format('{:+.2f}%; {:+.2f}%', 100 * (tok_s_g / tok_s_e - 1), 100 * (dur_e / dur_g - 1)), agrees: 'yes', why_it_matters: 'The loss itself is well measured: runs of the two arms do not overlap.'}
], recursive := true) FROM g) ORDER BY n;
