-- Who is at the barrier.
-- KEYS  state, here
-- ARGV  attempt
-- gives the UIDs
if redis.call('HGET', KEYS[1], 'attempt') ~= ARGV[1] then return {} end
return redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. int(now()), '+inf')
