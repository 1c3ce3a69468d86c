-- Members leave the barrier, which they cannot once the gang is committed.
-- KEYS  state, here
-- ARGV  attempt, UIDs ...
-- gives {'withdrawn'} | {'committed'} | {'gone'}
local s = redis.call('HMGET', KEYS[1], 'attempt', 'phase')
if s[1] ~= ARGV[1] then return {'gone'} end
if s[2] == 'committed' then return {'committed'} end
for i = 2, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
return {'withdrawn'}
