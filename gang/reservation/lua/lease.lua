-- Takes a lease, or renews it.
-- KEYS  lease
-- ARGV  holder, ms
-- gives 1 if the holder has it now, else 0
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
